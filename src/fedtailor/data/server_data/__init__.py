"""Data of the server: drawn from the clients' data, rendered, from another data set, or damaged."""
