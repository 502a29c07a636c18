"""Data sets from arrays and `.npz` files, and those that come with the library."""
