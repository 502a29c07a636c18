"""Options of `load_federated`: which there are, which apply together, and what they mean.

In a specification options are a flat mapping. `resolve_options` completes and checks it, and
`parse_options` turns the result into values with types.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedtailor.data.arguments import require_bool
from fedtailor.data.keyword_options import bind_keywords, get_keyword_defaults
from fedtailor.data.partition import HIERARCHICAL_PARTITIONERS, PARTITIONERS, Owners, mixture
from fedtailor.data.partition.splits import SplitConfig
from fedtailor.data.server_data import NO_SOURCE, SERVER_SOURCES, ServerSource
from fedtailor.data.server_data.damage import DAMAGES
from fedtailor.errors import InputError, is_number, require, suggest_name

NATURAL = "natural"
"""Value of `partition` that keeps the data set's own clients."""

SPLIT_STRATEGIES = ("random", "last", "own")
"""Values of option `split`: which of a client's examples are for test."""


def _option(default: Any, meaning: str) -> Any:
    """Return a field of a dataclass for an option, with its default and its help."""
    return field(default=default, metadata={"help": meaning})


@dataclass(frozen=True, kw_only=True)
class GeneralOptions:
    """Options that always apply. Their values decide which others apply."""

    partition: str = _option(NATURAL, "how examples are assigned to clients, see below")
    clients: int | None = _option(
        50, "number of clients; of the data set's own clients random ones, None: all"
    )
    others: str = _option("", "partition of a share of the clients, if not that of the rest")
    zeta: float = _option(
        1.0,
        "share of the clients that keep the labels; each other client permutes them in its own "
        "way, as AFML's mutually exclusive clients",
    )
    server: float = _option(
        0.05, "amount of the server's data: a share (float), a number (int), 0: none"
    )
    server_from: str = _option("examples", "source of the server's data, see below")
    server_damage: str = _option("none", f"damage to the server's data: {', '.join(DAMAGES)}")
    overlap: bool = _option(
        False,
        "whether clients may have the server's examples, too: they keep what it draws from them, "
        "as in FSL's paper; the server gives up what clients are tested on",
    )
    split: str = _option(
        "random",
        "examples for test: random ones, the last ones of each client, or the data set's own",
    )
    test_share: float = _option(0.25, "share of each client's examples for test")
    validation_clients: float = _option(0.1, "share of the clients that are for validation")
    unseen_clients: float = _option(0.2, "share of the clients that are never trained on")
    adapt: str | float = _option(
        "train", "what clients adapt on: train, test, or a share of the examples for test"
    )
    support: float = _option(
        0.2, "share of the train examples that meta-learning adapts on while training"
    )
    seed: int = _option(0, "seed of everything random; by default that of the run, in a run")

    @property
    def split_config(self) -> SplitConfig:
        """The shares among these options."""
        return SplitConfig(
            test_share=self.test_share,
            adapt=self.adapt,
            validation_clients=self.validation_clients,
            unseen_clients=self.unseen_clients,
            support=self.support,
        )


@dataclass(frozen=True, kw_only=True)
class NaturalOptions:
    """Options of partition "natural": which of the data set's own clients there are."""

    least: int = _option(1, "clients with fewer examples are left out")
    most: int | None = _option(None, "maximum number of examples used of a client, None: all")
    reserved: float = _option(
        0.0,
        "amount of clients that are taken out for the server whatever amount it has, so that the "
        "others are always the same",
    )


@dataclass(frozen=True, kw_only=True)
class ConditionalOptions:
    """Options that apply beside certain values of general ones."""

    others_share: float = _option(0.5, "share of the clients that follow `others`, if it is given")
    augment: bool = _option(
        False,
        "whether clients that permute labels (zeta below 1) also rotate and mirror their images, "
        "each in its own way",
    )
    server_amount: float = _option(0.2, "extent of `server_damage`, if there is any, from 0 to 1")


class BoundPartitioner(NamedTuple):
    """A partitioner with its options bound: (labels, number of clients, generator) -> owners."""

    assign: Callable[..., Owners]
    is_hierarchical: bool  # labels are a `LabelHierarchy`


@dataclass(frozen=True)
class ScenarioOptions:
    """Options of a scenario, and the functions that they name with their own options bound."""

    general: GeneralOptions
    conditional: ConditionalOptions  # the defaults where they do not apply
    partition: NaturalOptions | BoundPartitioner
    server_source: ServerSource  # `NO_SOURCE` if the server has no examples


def _get_defaults(options_class: type) -> dict[str, Any]:
    return {option.name: option.default for option in fields(options_class)}


GENERAL_OPTIONS = _get_defaults(GeneralOptions)
"""Options that always apply, with their defaults."""

ALL_PARTITIONERS = PARTITIONERS | HIERARCHICAL_PARTITIONERS

PARTITION_OPTIONS: dict[str, dict[str, Any]] = {
    NATURAL: _get_defaults(NaturalOptions),
    **{name: get_keyword_defaults(assign) for name, assign in ALL_PARTITIONERS.items()},
}
"""Options of each partition, with their defaults."""

SERVER_OPTIONS = {name: source.get_options() for name, source in SERVER_SOURCES.items()}
"""Options of each source of server examples (option `server_from`), with their defaults."""

ALL_OPTIONS = {*GENERAL_OPTIONS, *_get_defaults(ConditionalOptions)}.union(
    *PARTITION_OPTIONS.values(), *SERVER_OPTIONS.values()
)
"""Names of all options."""


def resolve_options(
    name: str, defaults: Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any]:
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
    values = {**defaults, **overrides}
    general_values = _select(GENERAL_OPTIONS, values)
    if general_values["partition"] == NATURAL and "clients" not in overrides:
        general_values["clients"] = None  # all clients of the data set
    general = GeneralOptions(**general_values)
    _check_choices(name, general)
    resolved = general_values | _select(_get_dependent_options(general), values)
    for option, value in overrides.items():
        if option not in resolved:
            raise InputError(
                f"{name}: {_describe_choice(general, option)} has no use for {option}={value!r}; "
                "leave it out."
            )
    return resolved


def parse_options(resolved: Mapping[str, Any]) -> ScenarioOptions:
    """Return the options that `resolve_options` has returned as values with types."""
    general = GeneralOptions(**_select(GENERAL_OPTIONS, resolved))
    conditional = ConditionalOptions(**_select(_get_defaults(ConditionalOptions), resolved))
    partition: NaturalOptions | BoundPartitioner
    if general.partition == NATURAL:
        partition = NaturalOptions(**_select(PARTITION_OPTIONS[NATURAL], resolved))
    else:
        partition = _bind_partitioner(general, conditional, resolved)
    server_source = NO_SOURCE
    if general.server:
        server_source = SERVER_SOURCES[general.server_from].bind(resolved)
    return ScenarioOptions(general, conditional, partition, server_source)


def _bind_partitioner(
    general: GeneralOptions, conditional: ConditionalOptions, resolved: Mapping[str, Any]
) -> BoundPartitioner:
    """Return the partitioner, or the mixture of two, with its options bound."""
    assign = bind_keywords(ALL_PARTITIONERS[general.partition], resolved)
    if general.others:
        other = bind_keywords(PARTITIONERS[general.others], resolved)
        assign = partial(mixture, partitioner=assign, other=other, share=conditional.others_share)
    return BoundPartitioner(assign, general.partition in HIERARCHICAL_PARTITIONERS)


def _select(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in `defaults`, with those of their values that are given."""
    return {option: values.get(option, default) for option, default in defaults.items()}


def _to_python(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _check_choices(name: str, general: GeneralOptions) -> None:
    """Raise `InputError` for a choice that does not exist, or for two that exclude each other."""
    choices: dict[str, Collection[str]] = {
        "partition": PARTITION_OPTIONS,
        "server_from": SERVER_SOURCES,
        "server_damage": ("none", *DAMAGES),
        "split": SPLIT_STRATEGIES,
    }
    if general.others != "":
        choices["others"] = PARTITIONERS
    for option, known in choices.items():
        value = getattr(general, option)
        is_known = isinstance(value, str) and value in known
        require(
            is_known, f"{name}: there is no {option}={value}; {suggest_name(str(value), known)}"
        )
    can_mix = not general.others or general.partition in PARTITIONERS
    require(
        can_mix, f"{name}: others cannot go beside partition={general.partition}; leave it out."
    )
    require_bool(name, "overlap", general.overlap)
    for option in ("server", "zeta"):
        value = getattr(general, option)
        require(is_number(value), f"{name}: {option} must be a number, got {value!r}.")


def _get_dependent_options(general: GeneralOptions) -> dict[str, Any]:
    """Return the options that apply because of general ones, with their defaults."""
    options: dict[str, Any] = {}
    if general.others:
        options |= PARTITION_OPTIONS[general.others]
    # Where both partitions have an option, its default is that of `partition`.
    options |= PARTITION_OPTIONS[general.partition]
    if general.others:
        options["others_share"] = ConditionalOptions.others_share
    if general.zeta != 1:
        options["augment"] = ConditionalOptions.augment
    options |= SERVER_OPTIONS[general.server_from]
    if general.server_damage != "none":
        options["server_amount"] = ConditionalOptions.server_amount
    return options


def _describe_choice(general: GeneralOptions, option: str) -> str:
    """Return in words the choice because of which an option does not apply."""
    if option == "augment":
        return "zeta=1"
    if option == "server_amount":
        return f"server={general.server} with server_damage={general.server_damage}"
    if option.startswith("server_"):
        return f"server={general.server} with server_from={general.server_from}"
    if general.others:
        return f"partition {general.partition} with {general.others}"
    return f"partition {general.partition}"
