"""Tables, pages and pictures."""
