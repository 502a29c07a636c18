"""What a server may hold that is not, or not quite, the clients' data: drawn, rendered, damaged."""
