"""Where and how the functions of a method run."""
