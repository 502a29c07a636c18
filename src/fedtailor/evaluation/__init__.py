"""Figures: of clients, of classes, over rounds, and what they cost."""
