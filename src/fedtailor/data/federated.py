"""A data set among people: who holds which of its examples, what the server has, who trains and who is new.

Examples stay where they lie, memory-mapped; who holds which is an index, worked out once and kept beside them.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.data import content
from fedtailor.data.arrays import generator
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.dividing import Shares
from fedtailor.data.division import NO_ROWS, SERVER, Division, divide
from fedtailor.data.holders import Array, Holders, Split, sole_holder
from fedtailor.data.options import filled
from fedtailor.data.server.damage import damaged
from fedtailor.data.server.elsewhere import made_elsewhere
from fedtailor.data.sets import KNOWN, classes_of, stored
from fedtailor.data.store import Scenario, Stored, scenario
from fedtailor.errors import require

AUGMENT, DAMAGE = 33, 34
"""What random numbers are drawn for, among the purposes of a dataset."""

VERSION = 3
"""Of the ways in which data is divided: what another version has kept on disk is made again."""

CHECKED = 1 << 24
"""Up to so many examples, all that a dataset promises is checked; above, what follows from how it is made is not."""

OVERLAP = "clients train on examples that the server has drawn from them, or has too"

Rows = NDArray[np.int64]
Options = dict[str, Any]
Examples = tuple[Array, Array]


def federated(name: str, **given: Any) -> FederatedDataset:
    """A data set that has been added (`sets.add`), divided among people by options of your choice.

    partition      whose each example is; takes the options beside it and no others
      natural        as the set says. least, most: whoever has fewer is left out, of whoever has more so many are used;
                     clients: so many people at random (None: all)
      two-labels     ratio, used, least: FedMeta-Per's, with test_share=0.25, adapt=0.2; two labels each, a share `used`
                     of the examples divided by weights from 1 to `ratio`
      half-and-half  images, drop_half: Per-FedAvg's; every other client has `images` of each of the first half of the
                     labels, the rest images / 2 of one of those (none: drop_half) and 2 * images of one of the others
      few-labels     labels, size: FSL's; `labels` labels each, equally many of each, `size` in all (None: all there is)
      shards         shards: so many equal shards each of the examples sorted by label
      dirichlet      alpha, least: each label divided by shares from Dirichlet(alpha), nobody with fewer than `least`
      quantity       alpha, least: random examples, sizes from Dirichlet(alpha)
      pachinko       size, alpha, beta: by coarse and fine labels, as for federated CIFAR-100
      iid            random examples, equal sizes
    others           the partition of a share `others_share` of the clients
    zeta             a share 1 - zeta of the clients gives the labels an order of its own (and, with augment, turns and
                     mirrors its images in a way of its own): AFML's mutually exclusive clients
    server           how much the server has: a share (float), a count (int), 0: nothing
    server_from      examples: of all examples, at random; classes: equally many of each class; people: of the people,
                     all of whose examples are the server's; clients: of the clients, `server_each` examples of each;
                     rendered: characters drawn with server_fonts, server_rotations, server_points, and with
                     server_fill as large as EMNIST's; set: examples of server_set, another data set, whose classes have
                     the same names
    server_damage    none, or what is done to the server's copy, by server_amount
    overlap          clients keep what the server draws from them, as in FSL's paper, but for what they are tested on,
                     which it gives up
    split            test examples are random, the last of each person, or those of the set's own test part
    test_share, validation_clients, new_clients, adapt, support, seed: as for `from_arrays`

    No client has an example that equals one of the server's: of images that it draws from all of them, clients lose
    theirs; elsewhere, and of texts, where the same short sentence comes from many, the server gives up its own.
    """
    options = filled(name, defaults_of(name), given)
    data = stored(name)
    shares = Shares(*(options[key] for key in Shares._fields))
    shares.check(name)
    about = {"division": VERSION, **options, **_identity(options)}
    made = scenario(data, about, partial(_scenario, data, options, shares))
    return _dataset(data, options, shares, _division(made), _examples(data, made.arrays), trust=True)


def defaults_of(name: str) -> Options:
    """A data set's own defaults."""
    return dict(KNOWN[name].defaults) if name in KNOWN else {}


def _identity(options: Options) -> Options:
    """What another data set was when its examples were taken."""
    return {"server_identity": stored(options["server_set"]).identity} if options.get("server_set") else {}


def _scenario(data: Stored, options: Options, shares: Shares) -> Scenario:
    """The division, checked, as it is kept on disk."""
    division = divide(data, options, shares)
    arrays = _servers(data, options, division)
    _dataset(data, options, shares, division, _examples(data, arrays), trust=data.rows > CHECKED)
    arrays |= {f"group_{group}": who for group, who in division.groups.items()}
    arrays |= {"ids": division.ids, "relabelled": division.relabelled}
    arrays |= {} if division.y is None else {"y": division.y}
    return Scenario(division.splits, arrays)


def _division(made: Scenario) -> Division:
    arrays = made.arrays
    groups = {what.removeprefix("group_"): array for what, array in arrays.items() if what.startswith("group_")}
    return Division(made.splits, groups, arrays["ids"], NO_ROWS, arrays.get("y"), arrays["relabelled"])


def _dataset(
    data: Stored, options: Options, shares: Shares, division: Division, own: Examples | None, trust: bool
) -> FederatedDataset:
    about = data.attributes
    x, y = data.columns["x"], data.columns["y"] if division.y is None else division.y
    if options.get("augment"):
        x = augmented(x, division.splits, division.relabelled, generator(options["seed"], AUGMENT))
    if own is not None and options["server_damage"] != "none":
        harm = {"damage": options["server_damage"], "amount": options["server_amount"]}
        own = damaged(*own, classes_of(data) or 1, **harm, draws=generator(options["seed"], DAMAGE))
    return FederatedDataset(
        name=data.name,
        clients=Holders(x, y, division.splits),
        ids=division.ids,
        groups=division.groups,
        server=None if own is None else sole_holder(*own),
        classes=classes_of(data),
        scale=about.get("scale", 1.0),
        tokens=about.get("tokens", False),
        padding=tuple(about.get("padding", ())),
        uncounted=tuple(about.get("uncounted", ())),
        support=shares.support,
        identity=data.identity if x is data.columns["x"] and division.y is None else "",
        overlap=OVERLAP if options["overlap"] and own is not None else "",
        trust=trust,
    )


def _servers(data: Stored, options: Options, division: Division) -> dict[str, Array]:
    """What the server keeps, as it is kept on disk: rows of the data set, or examples from elsewhere themselves."""
    if not options["server"]:
        return {"own": division.own}
    elsewhere = made_elsewhere(data, options, generator(options["seed"], SERVER))
    drawn, rows = (
        (data.columns["x"], division.own) if elsewhere is None else (elsewhere[0], np.arange(len(elsewhere[0])))
    )
    kept = _kept(data, options, division, drawn, rows)
    have, or_else = ("are tested on", "") if options["overlap"] else ("have", ", or for overlap=true")
    gave = f"clients {have} an equal of each of the {len(rows)} examples drawn for the server, which gives these up"
    require(len(kept) > 0, f"{data.name}: {gave}; ask for more than {options['server']}{or_else}.")
    if elsewhere is None:
        return {"own": division.own[kept]}
    return {"own_x": elsewhere[0][kept], "own_y": elsewhere[1][kept]}


def _examples(data: Stored, arrays: dict[str, Array]) -> Examples | None:
    """The server's examples, unless it has none."""
    if "own_x" in arrays:
        own = np.array(arrays["own_x"]), np.array(arrays["own_y"])
    else:
        own = data.columns["x"][arrays["own"]], data.columns["y"][arrays["own"]]
    return own if len(own[0]) else None


def _kept(data: Stored, options: Options, division: Division, own: Array, rows: Rows) -> Rows:
    """Which of these rows, of examples drawn for the server, it keeps.

    None that equals a client's; or, if they may overlap, none that a client is tested on.
    """
    parts = [division.splits["test"]] if options["overlap"] else division.splits.values()
    mine, x = content.hashes(own, rows), data.columns["x"]
    shared = [np.zeros(0, np.uint64)]
    for split in {id(split): split for split in parts}.values():
        for start in range(0, len(split.index), 1 << 20):
            held = np.asarray(split.index[start : start + (1 << 20)])
            shared.append(content.hashes(x, held[content.among(x, held, mine)]))
    return np.flatnonzero(~np.isin(mine, np.concatenate(shared)))


def augmented(x: Array, parts: dict[str, Split], who: Rows, draws: np.random.Generator) -> Array:
    """A copy of images of which each of these people's are turned and mirrored, in a way of that person's own."""
    changed = np.array(x)
    require(x.ndim == 4 and x.shape[2] == x.shape[3], f"augment needs square images, got {list(x.shape[1:])} of each.")
    for person, turns, mirrored in zip(who, draws.integers(0, 4, len(who)), draws.random(len(who)) < 0.5, strict=True):
        rows = np.unique(np.concatenate([split.of(int(person)) for split in parts.values()]))
        turned = np.rot90(x[rows], turns, (2, 3))
        changed[rows] = turned[..., ::-1] if mirrored else turned
    return changed
