"""Running methods: specifications, the round loop, evaluation, tables."""

from fedtailor.run.fitting import Fitted, Personal, fit

__all__ = ["Fitted", "Personal", "fit"]
