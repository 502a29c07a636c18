"""Personalised federated learning with server-side data.

data = fedtailor.from_arrays(x, y, client, server=0.05)
fitted = fedtailor.fit("fedsim", model, data, rounds=30)
mine = fitted.personalise(my_x, my_y)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedtailor.data import FederatedDataset, digits, from_arrays, synthetic
    from fedtailor.engines import Engine
    from fedtailor.errors import DivergedError, FedtailorError, InputError, WorkError
    from fedtailor.models import with_group_norm
    from fedtailor.run import Fitted, Personal, fit
    from fedtailor.task import Task, classification, multilabel, regression, sequences
    from fedtailor.types import Method

__version__ = "0.1.0"

_HOMES = {
    "data": ("FederatedDataset", "digits", "from_arrays", "synthetic"),
    "engines": ("Engine",),
    "errors": ("DivergedError", "FedtailorError", "InputError", "WorkError"),
    "models": ("with_group_norm",),
    "run": ("Fitted", "Personal", "fit"),
    "task": ("Task", "classification", "multilabel", "regression", "sequences"),
    "types": ("Method",),
}

__all__ = [
    "DivergedError",
    "Engine",
    "FederatedDataset",
    "FedtailorError",
    "Fitted",
    "InputError",
    "Method",
    "Personal",
    "Task",
    "WorkError",
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
    """Imports a public name when it is first used, so that the command line starts without torch."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"fedtailor.{home}"), name)
    raise AttributeError(f"module 'fedtailor' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
