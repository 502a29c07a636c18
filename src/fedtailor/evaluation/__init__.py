"""Evaluation: scores of clients, statistics over clients, classes and rounds, and costs."""
