"""The door to what torch does not promise: only here are its private parts and versions known."""
