"""Engines: where and how the routines of a method run."""
