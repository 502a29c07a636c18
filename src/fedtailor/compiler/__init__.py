"""From the step of a phase to a program: tracing, Inductor, CUDA graphs."""
