"""Federated datasets: who holds which examples. Bring your own arrays, or load a source by name."""

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from fedtailor.data.arrays import from_arrays
from fedtailor.data.dataset import FederatedDataset, Summary, check
from fedtailor.data.digits import digits
from fedtailor.data.holders import Holders, Split, sole_holder
from fedtailor.data.synthetic import synthetic
from fedtailor.errors import require

__all__ = [
    "SOURCES",
    "FederatedDataset",
    "Holders",
    "Split",
    "Summary",
    "check",
    "digits",
    "from_arrays",
    "load",
    "sole_holder",
    "synthetic",
]

SOURCES: dict[str, Callable[..., FederatedDataset]] = {"digits": digits, "synthetic": synthetic}
"""The datasets that can be had by name."""


def load(name: str, **options: Any) -> FederatedDataset:
    """A source's dataset by its name, with that source's options."""
    require(name in SOURCES, f"data: no dataset is called {name!r}; {_nearest(name, list(SOURCES))}.")
    known = list(inspect.signature(SOURCES[name]).parameters)
    for option in options:
        require(option in known, f"{name}: there is no option {option!r}; {_nearest(option, known)}.")
    return SOURCES[name](**options)


def _nearest(word: str, known: list[str]) -> str:
    """What to say to somebody who wrote a word that is not known."""
    close = get_close_matches(word, known, n=1)
    return (f"did you mean {close[0]!r}? " if close else "") + f"known are {', '.join(known)}"
