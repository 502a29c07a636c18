"""Wrappers: methods around methods."""
