"""What reaches the disk."""
