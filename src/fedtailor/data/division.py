"""Whose each example of a stored data set is: people as the set says, or clients by a rule; what the server takes."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data import content, natural
from fedtailor.data.arrays import generator, how_many, require_whole
from fedtailor.data.dividing import Groups, Shares, at_random, knowing, splits
from fedtailor.data.holders import Array, Split
from fedtailor.data.natural import PARTITION, People
from fedtailor.data.options import RULES
from fedtailor.data.partitions import NOBODY, PARTITIONS, Whose, mixture, pachinko, relabelled
from fedtailor.data.server.drawing import BEFORE, clients, people
from fedtailor.data.store import Stored
from fedtailor.errors import is_number, require

SPLITS, PEOPLE, SERVER, RELABEL = 1, 2, 30, 32
"""What random numbers are drawn for, among the purposes of a dataset."""

Rows = NDArray[np.int64]
Options = dict[str, Any]
NO_ROWS = np.zeros(0, np.int64)


class Division(NamedTuple):
    """Who holds what."""

    splits: dict[str, Split]
    groups: Groups
    ids: NDArray[np.str_]
    own: Rows  # the server's rows
    y: Array | None  # new labels, where people have given theirs an order of their own
    relabelled: Rows  # these people, by number


def divide(data: Stored, options: Options, shares: Shares) -> Division:
    """The division that the options ask for."""
    source = options["server_from"] if options["server"] else ""
    if options["partition"] != "natural":
        return _by_rule(data, options, shares, source)
    found = natural.everybody(data, options)
    own = NO_ROWS
    if source == "people" or options["reserved"]:
        found, own = _without_servers(data, options, found, source)
    runs = options["split"] == "last" or (options["split"] == "own" and natural.in_order(data))
    if runs and options["zeta"] == 1 and source not in (*BEFORE, "clients"):
        groups = at_random(found.only_new, shares, generator(options["seed"], PEOPLE))
        parts = natural.as_runs(found, options, shares)
        return Division(parts, groups, np.asarray(data.ids[found.numbers]), own, None, NO_ROWS)
    whose = natural.whose(data, found, options)
    if source in BEFORE:
        own, left = _before(data, np.flatnonzero(whose != NOBODY), options)
        whose = np.where(np.isin(np.arange(data.rows), left), whose, NOBODY)
    return _by_row(data, options, shares, source, whose, own, np.asarray(data.ids[found.numbers]))


def _without_servers(data: Stored, options: Options, found: People, source: str) -> tuple[People, Rows]:
    """The people but for the server's and those kept for it, and the server's rows."""
    order_of, kept_back = generator(options["seed"], SERVER), options["reserved"]
    good = is_number(kept_back) and kept_back >= 0 and (kept_back < 1 or is_number(kept_back, whole=True))
    require(good, f"{data.name}: reserved must be a count or a share from 0 to less than 1, got {kept_back!r}.")
    count, server = len(found.numbers), options["server"] if source == "people" else 0
    reserved = max(how_many(data.name, kept_back, count), how_many(data.name, server, count))
    kept = people(data.name, found.only_new, reserved, order_of)
    own = found.of(np.sort(kept[: how_many(data.name, server, count)])).rows() if source == "people" else NO_ROWS
    rest = np.arange(count) if options["overlap"] else np.setdiff1d(np.arange(count), kept)
    return found.of(rest), own


def _by_rule(data: Stored, options: Options, shares: Shares, source: str) -> Division:
    """Clients by a rule, of what the server leaves if it takes examples before."""
    y, name = data.columns["y"], data.name
    labelled = y.ndim == 1 and y.dtype.kind in "iu"
    require(labelled, f"{name}: partition={options['partition']} needs one label for each example; take natural.")
    require_whole(name, "clients", options["clients"], 1)
    everything = np.arange(data.rows)
    own, rows = _before(data, everything, options) if source in BEFORE else (NO_ROWS, everything)
    whose = np.full(data.rows, NOBODY, np.int64)
    draws = generator(options["seed"], PARTITION)
    whose[rows] = _rule(data, rows, options)(y[rows].astype(np.int64), options["clients"], draws)
    count = int(whose.max()) + 1
    if source == "people":
        chosen = people(
            name, np.zeros(count, bool), how_many(name, options["server"], count), generator(options["seed"], SERVER)
        )
        own = np.flatnonzero(np.isin(whose, chosen))
        whose = whose if options["overlap"] else np.where(np.isin(whose, chosen), NOBODY, whose)
    return _by_row(data, options, shares, source, whose, own, np.arange(count).astype(str))


def _rule(data: Stored, rows: Rows, options: Options) -> Any:
    """The partition that is asked for, with its options."""
    own = {
        rule: {key: options[key] for key in RULES[rule]} for rule in (options["partition"], options["others"]) if rule
    }
    if options["partition"] == "pachinko":
        return partial(pachinko, _coarse(data)[rows], **own["pachinko"])
    first, *second = (partial(PARTITIONS[rule], **its) for rule, its in own.items())
    if options["others"] == options["partition"]:
        second = [first]
    return partial(mixture, rule=first, other=second[0], share=options["others_share"]) if second else first


def _coarse(data: Stored) -> Array:
    """The coarse label of each example: a column of its own, or the group that its class belongs to."""
    if "coarse" in data.columns:
        return data.columns["coarse"]
    groups = data.attributes.get("coarse")
    require(groups is not None, f"{data.name}: pachinko needs coarse labels, but this set has none.")
    return np.array(groups)[data.columns["y"]]


def _before(data: Stored, rows: Rows, options: Options) -> tuple[Rows, Rows]:
    """The server's of these rows, and what it leaves: of images, nothing that equals one of its own."""
    x, y = data.columns["x"], data.columns["y"]
    drawn = BEFORE[options["server_from"]](data.name, y[rows], options["server"], generator(options["seed"], SERVER))
    own, rest = rows[drawn], np.delete(rows, drawn)
    if options["overlap"]:
        return own, rows
    if len(own) and not data.attributes.get("tokens"):
        rest = rest[~content.among(x, rest, content.hashes(x, own))]
    return own, rest


def _by_row(
    data: Stored, options: Options, shares: Shares, source: str, whose: Whose, own: Rows, ids: NDArray[np.str_]
) -> Division:
    """Everything else, once it is known whose each row is."""
    if source == "clients":
        own, whose = _of_clients(data, options, whose)
    rows = np.flatnonzero(whose != NOBODY)
    require(len(rows) > 0, f"{data.name}: the server leaves nothing to clients; ask for less than {options['server']}.")
    still, holder = np.unique(whose[rows], return_inverse=True)
    testing = _testing(data, options, rows)
    parts = splits(holder, len(still), shares, generator(options["seed"], SPLITS), options["split"], testing)
    placed = {what: Split(rows[split.index], split.offsets) for what, split in parts.items()}
    if isinstance(shares.adapt, str):
        placed["adapt"] = placed[shares.adapt]
    labels, changed = _relabelled(data, options, rows, holder)
    tests = np.zeros(len(still)) if testing is None else np.bincount(holder, testing, len(still))
    only_new = tests == np.bincount(holder)
    if options["partition"] == "natural":
        groups = at_random(only_new, shares, generator(options["seed"], PEOPLE))
    else:
        groups = knowing(_knows(data, rows, holder, labels), only_new, shares)
    return Division(placed, groups, ids[still], own, labels, changed)


def _of_clients(data: Stored, options: Options, whose: Whose) -> tuple[Rows, Whose]:
    """Examples of some clients for the server, and whose everything is then."""
    held, draws = np.flatnonzero(whose != NOBODY), generator(options["seed"], SERVER)
    own = held[clients(data.name, whose[held], options["server"], draws, each=options["server_each"])]
    left = whose.copy()
    left[own] = whose[own] if options["overlap"] else NOBODY
    return own, left


def _testing(data: Stored, options: Options, rows: Rows) -> NDArray[np.bool_] | None:
    """Which rows are of the set's own test part, if that is asked for."""
    if options["split"] != "own":
        return None
    require("testing" in data.columns, f"{data.name}: split=own needs a test part, but this set has none; take random.")
    return np.asarray(data.columns["testing"][rows])


def _relabelled(data: Stored, options: Options, rows: Rows, holder: Whose) -> tuple[Array | None, Rows]:
    """New labels where some people give theirs an order of their own, and who does."""
    if options["zeta"] == 1:
        return None, NO_ROWS
    y = data.columns["y"]
    require(y.ndim == 1, f"{data.name}: zeta needs one label for each example.")
    labels, count = np.array(y), int(holder.max()) + 1
    labels[rows] = relabelled(labels[rows], holder, generator(options["seed"], RELABEL), zeta=options["zeta"])
    who = generator(options["seed"], RELABEL).permutation(count)[: round((1 - options["zeta"]) * count)]
    return labels, np.sort(who)


def _knows(data: Stored, rows: Rows, holder: Whose, labels: Array | None) -> NDArray[np.bool_]:
    """Who has which labels."""
    kinds, codes = np.unique((data.columns["y"] if labels is None else labels)[rows], return_inverse=True)
    knows = np.zeros((int(holder.max()) + 1, len(kinds)), bool)
    knows[holder, codes] = True
    return knows
