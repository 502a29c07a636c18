"""Compilation of the steps of a phase: graphs, Inductor, CUDA graphs, and programs made of them."""
