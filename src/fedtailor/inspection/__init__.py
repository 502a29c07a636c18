"""Will the server's data help? Looked at before any long run."""
