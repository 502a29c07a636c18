"""Running methods: specifications, the round loop, evaluation, tables."""

from fedtailor.run.fitting import Fitted, fit
from fedtailor.run.personal import Personal

__all__ = ["Fitted", "Personal", "fit"]
