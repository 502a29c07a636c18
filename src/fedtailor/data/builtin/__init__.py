"""Data sets from arrays and files at hand, and those that come with the library."""
