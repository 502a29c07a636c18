"""The options of a data set's division among people: which there are, their defaults, and which go together."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from fedtailor.data.partition import PARTITIONERS, pachinko
from fedtailor.data.server_data.damage import DAMAGES
from fedtailor.data.server_data.holdout import SERVER_SOURCES, draw_from_clients
from fedtailor.errors import require, suggest_name

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
"""What every division has. The rest depends on what is chosen here."""

SPLIT_STRATEGIES = ("random", "last", "own")


def _get_keyword_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword-only arguments of a function, with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


PARTITION_OPTIONS: dict[str, dict[str, Any]] = {
    "natural": {"least": 1, "most": None, "reserved": 0.0},
    **{name: _get_keyword_defaults(rule) for name, rule in PARTITIONERS.items()},
    "pachinko": _get_keyword_defaults(pachinko),
}
"""The options of each partition."""

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
"""The options of each place that the server's examples may come from."""

ALL_OPTIONS = {
    *GENERAL_OPTIONS,
    "others_share",
    "augment",
    "server_amount",
    *(
        option
        for table in (*PARTITION_OPTIONS.values(), *SERVER_OPTIONS.values())
        for option in table
    ),
}
"""All options there are."""


def fill_defaults(name: str, defaults: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """The options given, with the defaults of all others that matter beside them; refuses those that do not."""
    overrides = {
        option: value.item() if isinstance(value, np.generic) else value
        for option, value in overrides.items()
    }
    for option in overrides:
        require(
            option in ALL_OPTIONS,
            f"{name}: there is no option '{option}'; {suggest_name(option, ALL_OPTIONS)}",
        )
    general = {
        key: overrides.get(key, defaults.get(key, default))
        for key, default in GENERAL_OPTIONS.items()
    }
    _check_choices(name, general)
    if general["partition"] == "natural" and "clients" not in overrides:
        general["clients"] = None  # everybody
    depending = _get_dependent_options(general)
    resolved = general | {
        key: overrides.get(key, defaults.get(key, default)) for key, default in depending.items()
    }
    for option, value in overrides.items():
        if option not in resolved:
            require(
                False,
                f"{name}: {_describe_choice(general, option)} has no use for {option}={value!r}; leave it out.",
            )
    return resolved


def _check_choices(name: str, general: dict[str, Any]) -> None:
    choices = {
        "partition": PARTITION_OPTIONS,
        "server_from": SERVER_SOURCES,
        "server_damage": ("none", *DAMAGES),
        "split": SPLIT_STRATEGIES,
    }
    for option, known in choices.items():
        value = general[option]
        there = isinstance(value, str) and value in known
        what = {"server_from": "place for the server's examples", "server_damage": "damage"}.get(
            option, option
        )
        require(there, f"{name}: there is no {what} '{value}'; {suggest_name(str(value), known)}")
    others = general["others"]
    known_other = others == "" or (isinstance(others, str) and others in PARTITIONERS)
    require(
        known_other,
        f"{name}: there is no partition '{others}'; {suggest_name(str(others), PARTITIONERS)}",
    )
    alone = not others or general["partition"] in PARTITIONERS
    require(
        alone, f"{name}: others cannot go beside partition={general['partition']}; leave it out."
    )
    require(
        isinstance(general["overlap"], bool),
        f"{name}: overlap must be true or false, got {general['overlap']!r}.",
    )


def _get_dependent_options(general: dict[str, Any]) -> dict[str, Any]:
    """The options that matter because of what was chosen."""
    rules = [PARTITION_OPTIONS[rule] for rule in (general["others"], general["partition"]) if rule]
    options = {option: default for rule in rules for option, default in rule.items()}
    options |= {"others_share": 0.5} if general["others"] else {}
    options |= {"augment": False} if general["zeta"] != 1 else {}
    options |= SERVER_OPTIONS[general["server_from"]]
    options |= {"server_amount": 0.2} if general["server_damage"] != "none" else {}
    return options


def _describe_choice(general: dict[str, Any], option: str) -> str:
    """What was chosen that has no use for an option, in words."""
    if option.startswith("server_"):
        kind = "server_damage" if option == "server_amount" else "server_from"
        return f"server={general['server']} with {kind}={general[kind]}"
    if option == "augment":
        return "zeta=1"
    return f"partition {' with '.join(filter(None, (general['partition'], general['others'])))}"
