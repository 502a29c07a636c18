"""Entry point of `python -m fedtailor`."""

from fedtailor.cli import main

main()
