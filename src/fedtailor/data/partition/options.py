"""Options of `load_federated`: which there are, their defaults, and which apply together."""

import inspect
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from fedtailor.data.partition import PARTITIONERS, pachinko
from fedtailor.data.server_data.damage import DAMAGES
from fedtailor.data.server_data.holdout import SERVER_SOURCES, draw_from_clients
from fedtailor.errors import InputError, require, suggest_name

GENERAL_OPTIONS: dict[str, Any] = {
    "partition": "natural",
    "clients": 50,
    "others": "",
    "zeta": 1.0,
    "server": 0.05,
    "server_from": "examples",
    "server_damage": "none",
    "overlap": False,
    "split": "random",
    "test_share": 0.25,
    "validation_clients": 0.1,
    "unseen_clients": 0.2,
    "adapt": "train",
    "support": 0.2,
    "seed": 0,
}
"""Options that always apply, with their defaults. Their values decide which others apply."""

SPLIT_STRATEGIES = ("random", "last", "own")
"""Values of option `split`: which of a client's examples are for test."""


def _get_keyword_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword-only arguments of a function with their defaults."""
    defaults = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            defaults[parameter.name] = parameter.default
    return defaults


PARTITION_OPTIONS: dict[str, dict[str, Any]] = {
    "natural": {"least": 1, "most": None, "reserved": 0.0},
    **{name: _get_keyword_defaults(partitioner) for name, partitioner in PARTITIONERS.items()},
    "pachinko": _get_keyword_defaults(pachinko),
}
"""Options of each partition, with their defaults."""

SERVER_OPTIONS: dict[str, dict[str, Any]] = {name: {} for name in SERVER_SOURCES} | {
    "clients": {
        f"server_{option}": default
        for option, default in _get_keyword_defaults(draw_from_clients).items()
    },
    "rendered": {
        "server_fonts": "cursive",
        "server_rotations": "-20,-10,0,10,20",
        "server_points": "100,110,120",
        "server_fill": False,
    },
    "set": {"server_set": ""},
}
"""Options of each source of server examples (option `server_from`), with their defaults."""

ALL_OPTIONS = {*GENERAL_OPTIONS, "others_share", "augment", "server_amount"}.union(
    *PARTITION_OPTIONS.values(), *SERVER_OPTIONS.values()
)
"""Names of all options."""


def fill_defaults(name: str, defaults: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the overrides with the defaults of all other options that apply.

    Raise `InputError` for an override that is no option, or one that does not apply.

    Args:
        name: Data set that errors name.
        defaults: Defaults of the data set, which replace those of the options.
        overrides: Options from the user; NumPy numbers become Python's.
    """
    overrides = {option: _to_python(value) for option, value in overrides.items()}
    for option in overrides:
        require(
            option in ALL_OPTIONS,
            f"{name}: there is no option '{option}'; {suggest_name(option, ALL_OPTIONS)}",
        )
    values = defaults | overrides
    general = {option: values.get(option, GENERAL_OPTIONS[option]) for option in GENERAL_OPTIONS}
    _check_choices(name, general)
    if general["partition"] == "natural" and "clients" not in overrides:
        general["clients"] = None  # all clients of the data set
    dependent = _get_dependent_options(general)
    resolved = general | {option: values.get(option, dependent[option]) for option in dependent}
    for option, value in overrides.items():
        if option not in resolved:
            raise InputError(
                f"{name}: {_describe_choice(general, option)} has no use for {option}={value!r}; "
                "leave it out."
            )
    return resolved


def _to_python(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _check_choices(name: str, general: dict[str, Any]) -> None:
    """Raise `InputError` for a choice that does not exist, or for two that exclude each other."""
    choices: dict[str, Collection[str]] = {
        "partition": PARTITION_OPTIONS,
        "server_from": SERVER_SOURCES,
        "server_damage": ("none", *DAMAGES),
        "split": SPLIT_STRATEGIES,
    }
    if general["others"] != "":
        choices["others"] = PARTITIONERS
    for option, known in choices.items():
        value = general[option]
        is_known = isinstance(value, str) and value in known
        require(
            is_known, f"{name}: there is no {option}={value}; {suggest_name(str(value), known)}"
        )
    can_mix = not general["others"] or general["partition"] in PARTITIONERS
    require(
        can_mix, f"{name}: others cannot go beside partition={general['partition']}; leave it out."
    )
    require(
        isinstance(general["overlap"], bool),
        f"{name}: overlap must be true or false, got {general['overlap']!r}.",
    )


def _get_dependent_options(general: dict[str, Any]) -> dict[str, Any]:
    """Return the options that apply because of general ones, with their defaults."""
    options: dict[str, Any] = {}
    if general["others"]:
        options |= PARTITION_OPTIONS[general["others"]]
    # Where both partitions have an option, its default is that of `partition`.
    options |= PARTITION_OPTIONS[general["partition"]]
    if general["others"]:
        options["others_share"] = 0.5
    if general["zeta"] != 1:
        options["augment"] = False
    options |= SERVER_OPTIONS[general["server_from"]]
    if general["server_damage"] != "none":
        options["server_amount"] = 0.2
    return options


def _describe_choice(general: dict[str, Any], option: str) -> str:
    """Return in words the choice because of which an option does not apply."""
    if option == "augment":
        return "zeta=1"
    if option == "server_amount":
        return f"server={general['server']} with server_damage={general['server_damage']}"
    if option.startswith("server_"):
        return f"server={general['server']} with server_from={general['server_from']}"
    if general["others"]:
        return f"partition {general['partition']} with {general['others']}"
    return f"partition {general['partition']}"
