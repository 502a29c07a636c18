"""Personalized federated learning with server-side data.

data = fedtailor.from_arrays(x, y, client, server=0.05)
fitted = fedtailor.fit("fedsim", model, data, rounds=30)
personal = fitted.personalize(my_x, my_y)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedtailor.api import FitResult, fit
    from fedtailor.core.task import Task, classification, multilabel, regression, sequences
    from fedtailor.core.types import Method
    from fedtailor.data import FederatedDataset, digits, from_arrays, synthetic
    from fedtailor.engines.base import Engine
    from fedtailor.errors import DivergedError, FedtailorError, InputError, RoutineError
    from fedtailor.models import with_group_norm
    from fedtailor.personalization.personal_model import PersonalModel

__version__ = "0.1.0"

# Modules below fedtailor and the public names that are imported from them.
_EXPORTS = {
    "data": ("FederatedDataset", "digits", "from_arrays", "synthetic"),
    "engines.base": ("Engine",),
    "errors": ("DivergedError", "FedtailorError", "InputError", "RoutineError"),
    "models": ("with_group_norm",),
    "api": ("FitResult", "fit"),
    "personalization.personal_model": ("PersonalModel",),
    "core.task": ("Task", "classification", "multilabel", "regression", "sequences"),
    "core.types": ("Method",),
}

__all__ = [
    "DivergedError",
    "Engine",
    "FederatedDataset",
    "FedtailorError",
    "FitResult",
    "InputError",
    "Method",
    "PersonalModel",
    "RoutineError",
    "Task",
    "classification",
    "digits",
    "fit",
    "from_arrays",
    "multilabel",
    "regression",
    "sequences",
    "synthetic",
    "with_group_norm",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command line starts without torch."""
    for module, names in _EXPORTS.items():
        if name in names:
            return getattr(import_module(f"fedtailor.{module}"), name)
    raise AttributeError(f"module 'fedtailor' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
