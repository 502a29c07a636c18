"""Personalised federated learning with server-side data."""
