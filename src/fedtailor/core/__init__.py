"""The contract: all that a method author has to read."""
