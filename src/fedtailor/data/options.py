"""The options of a data set's division among people: which there are, their defaults, and which go together."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from fedtailor.data.partitions import PARTITIONS, pachinko
from fedtailor.data.server.damage import DAMAGES
from fedtailor.data.server.drawing import SERVERS, clients
from fedtailor.errors import nearest, require

GENERAL: dict[str, Any] = {
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
    "new_clients": 0.2,
    "adapt": "train",
    "support": 0.2,
    "seed": 0,
}
"""What every division has. The rest depends on what is chosen here."""

SPLITS = ("random", "last", "own")


def _options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword-only arguments of a function, with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


RULES: dict[str, dict[str, Any]] = {
    "natural": {"least": 1, "most": None, "reserved": 0.0},
    **{name: _options_of(rule) for name, rule in PARTITIONS.items()},
    "pachinko": _options_of(pachinko),
}
"""The options of each partition."""

SERVER_OPTIONS: dict[str, dict[str, Any]] = {name: {} for name in SERVERS} | {
    "clients": {f"server_{option}": default for option, default in _options_of(clients).items()},
    "rendered": {
        "server_fonts": "cursive",
        "server_rotations": "-20,-10,0,10,20",
        "server_points": "100,110,120",
        "server_fill": False,
    },
    "set": {"server_set": ""},
}
"""The options of each place that the server's examples may come from."""

EVERY = {
    *GENERAL,
    "others_share",
    "augment",
    "server_amount",
    *(option for table in (*RULES.values(), *SERVER_OPTIONS.values()) for option in table),
}
"""All options there are."""


def filled(name: str, defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The options given, with the defaults of all others that matter beside them; refuses those that do not."""
    given = {option: value.item() if isinstance(value, np.generic) else value for option, value in given.items()}
    for option in given:
        require(option in EVERY, f"{name}: there is no option '{option}'; {nearest(option, EVERY)}")
    general = {key: given.get(key, defaults.get(key, default)) for key, default in GENERAL.items()}
    _check_choices(name, general)
    if general["partition"] == "natural" and "clients" not in given:
        general["clients"] = None  # everybody
    depending = _depending(general)
    filled = general | {key: given.get(key, defaults.get(key, default)) for key, default in depending.items()}
    for option, value in given.items():
        if option not in filled:
            require(False, f"{name}: {_chosen(general, option)} has no use for {option}={value!r}; leave it out.")
    return filled


def _check_choices(name: str, general: dict[str, Any]) -> None:
    choices = {"partition": RULES, "server_from": SERVERS, "server_damage": ("none", *DAMAGES), "split": SPLITS}
    for option, known in choices.items():
        value = general[option]
        there = isinstance(value, str) and value in known
        what = {"server_from": "place for the server's examples", "server_damage": "damage"}.get(option, option)
        require(there, f"{name}: there is no {what} '{value}'; {nearest(str(value), known)}")
    others = general["others"]
    known_other = others == "" or (isinstance(others, str) and others in PARTITIONS)
    require(known_other, f"{name}: there is no partition '{others}'; {nearest(str(others), PARTITIONS)}")
    alone = not others or general["partition"] in PARTITIONS
    require(alone, f"{name}: others cannot go beside partition={general['partition']}; leave it out.")
    require(isinstance(general["overlap"], bool), f"{name}: overlap must be true or false, got {general['overlap']!r}.")


def _depending(general: dict[str, Any]) -> dict[str, Any]:
    """The options that matter because of what was chosen."""
    rules = [RULES[rule] for rule in (general["others"], general["partition"]) if rule]
    options = {option: default for rule in rules for option, default in rule.items()}
    options |= {"others_share": 0.5} if general["others"] else {}
    options |= {"augment": False} if general["zeta"] != 1 else {}
    options |= SERVER_OPTIONS[general["server_from"]]
    options |= {"server_amount": 0.2} if general["server_damage"] != "none" else {}
    return options


def _chosen(general: dict[str, Any], option: str) -> str:
    """What was chosen that has no use for an option, in words."""
    if option.startswith("server_"):
        kind = "server_damage" if option == "server_amount" else "server_from"
        return f"server={general['server']} with {kind}={general[kind]}"
    if option == "augment":
        return "zeta=1"
    return f"partition {' with '.join(filter(None, (general['partition'], general['others'])))}"
