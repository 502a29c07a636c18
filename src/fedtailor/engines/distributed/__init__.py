"""One engine over several processes, which torchrun starts."""
