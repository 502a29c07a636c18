"""One engine over several processes."""
