"""A data set among people: who holds which of its examples, what the server has, who trains and who is new.

Examples stay where they lie, memory-mapped; who holds which is an index, worked out once and kept beside them.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.data import content_hash
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.examples import Array, ClientExamples, Split, single_client
from fedtailor.data.partition.assign import NO_ROWS, ClientAssignment, assign_clients
from fedtailor.data.partition.options import fill_defaults
from fedtailor.data.partition.splits import SplitConfig
from fedtailor.data.rng import make_rng
from fedtailor.data.server_data.damage import damage_examples
from fedtailor.data.server_data.external import make_external_examples
from fedtailor.data.sources import CATALOG, count_classes, open_dataset
from fedtailor.data.store import StoredDataset, StoredScenario, load_or_build_scenario
from fedtailor.errors import require
from fedtailor.prng.streams import DataStream

ASSIGNMENT_VERSION = 3
"""Of the ways in which data is divided: what another version has kept on disk is made again."""

MAX_CHECKED_ROWS = 1 << 24
"""Up to so many examples, all that a dataset promises is checked; above, what follows from how it is made is not."""

OVERLAP_REASON = "clients train on examples that the server has drawn from them, or has too"

Rows = NDArray[np.int64]
Options = dict[str, Any]
Examples = tuple[Array, Array]


def load_federated(name: str, **overrides: Any) -> FederatedDataset:
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
    test_share, validation_clients, unseen_clients, adapt, support, seed: as for `from_arrays`

    No client has an example that equals one of the server's: of images that it draws from all of them, clients lose
    theirs; elsewhere, and of texts, where the same short sentence comes from many, the server gives up its own.
    """
    options = fill_defaults(name, get_dataset_defaults(name), overrides)
    data = open_dataset(name)
    split_config = SplitConfig(*(options[key] for key in SplitConfig._fields))
    split_config.validate(name)
    about = {"division": ASSIGNMENT_VERSION, **options, **_get_server_hash(options)}
    scenario = load_or_build_scenario(
        data, about, partial(_build_scenario, data, options, split_config)
    )
    return _build_dataset(
        data,
        options,
        split_config,
        _restore_assignment(scenario),
        _load_server_examples(data, scenario.arrays),
        skip_checks=True,
    )


def get_dataset_defaults(name: str) -> Options:
    """A data set's own defaults."""
    return dict(CATALOG[name].defaults) if name in CATALOG else {}


def _get_server_hash(options: Options) -> Options:
    """What another data set was when its examples were taken."""
    return (
        {"server_identity": open_dataset(options["server_set"]).content_hash}
        if options.get("server_set")
        else {}
    )


def _build_scenario(
    data: StoredDataset, options: Options, split_config: SplitConfig
) -> StoredScenario:
    """The division, checked, as it is kept on disk."""
    assignment = assign_clients(data, options, split_config)
    arrays = _select_server_arrays(data, options, assignment)
    _build_dataset(
        data,
        options,
        split_config,
        assignment,
        _load_server_examples(data, arrays),
        skip_checks=data.num_rows > MAX_CHECKED_ROWS,
    )
    arrays |= {f"group_{group}": client_ids for group, client_ids in assignment.groups.items()}
    arrays |= {"ids": assignment.client_names, "relabelled": assignment.relabeled_clients}
    arrays |= {} if assignment.y is None else {"y": assignment.y}
    return StoredScenario(assignment.splits, arrays)


def _restore_assignment(scenario: StoredScenario) -> ClientAssignment:
    arrays = scenario.arrays
    groups = {
        what.removeprefix("group_"): array
        for what, array in arrays.items()
        if what.startswith("group_")
    }
    return ClientAssignment(
        scenario.splits, groups, arrays["ids"], NO_ROWS, arrays.get("y"), arrays["relabelled"]
    )


def _build_dataset(
    data: StoredDataset,
    options: Options,
    split_config: SplitConfig,
    assignment: ClientAssignment,
    server_examples: Examples | None,
    skip_checks: bool,
) -> FederatedDataset:
    about = data.attributes
    x, y = data.columns["x"], data.columns["y"] if assignment.y is None else assignment.y
    if options.get("augment"):
        x = augment_clients(
            x,
            assignment.splits,
            assignment.relabeled_clients,
            make_rng(options["seed"], DataStream.AUGMENT),
        )
    if server_examples is not None and options["server_damage"] != "none":
        harm = {"damage": options["server_damage"], "amount": options["server_amount"]}
        server_examples = damage_examples(
            *server_examples,
            count_classes(data) or 1,
            **harm,
            rng=make_rng(options["seed"], DataStream.DAMAGE),
        )
    return FederatedDataset(
        name=data.name,
        clients=ClientExamples(x, y, assignment.splits),
        client_names=assignment.client_names,
        groups=assignment.groups,
        server=None if server_examples is None else single_client(*server_examples),
        classes=count_classes(data),
        scale=about.get("scale", 1.0),
        tokens=about.get("tokens", False),
        padding=tuple(about.get("padding", ())),
        unscored_tokens=tuple(about.get("uncounted", ())),
        support=split_config.support,
        content_hash=data.content_hash if x is data.columns["x"] and assignment.y is None else "",
        overlap=OVERLAP_REASON if options["overlap"] and server_examples is not None else "",
        skip_checks=skip_checks,
    )


def _select_server_arrays(
    data: StoredDataset, options: Options, assignment: ClientAssignment
) -> dict[str, Array]:
    """What the server keeps, as it is kept on disk: rows of the data set, or examples from elsewhere themselves."""
    if not options["server"]:
        return {"own": assignment.server_rows}
    elsewhere = make_external_examples(
        data, options, make_rng(options["seed"], DataStream.STORE_SERVER)
    )
    drawn, rows = (
        (data.columns["x"], assignment.server_rows)
        if elsewhere is None
        else (elsewhere[0], np.arange(len(elsewhere[0])))
    )
    kept = _filter_server_rows(data, options, assignment, drawn, rows)
    have, or_else = (
        ("are tested on", "") if options["overlap"] else ("have", ", or for overlap=true")
    )
    gave = f"clients {have} an equal of each of the {len(rows)} examples drawn for the server, which gives these up"
    require(len(kept) > 0, f"{data.name}: {gave}; ask for more than {options['server']}{or_else}.")
    if elsewhere is None:
        return {"own": assignment.server_rows[kept]}
    return {"own_x": elsewhere[0][kept], "own_y": elsewhere[1][kept]}


def _load_server_examples(data: StoredDataset, arrays: dict[str, Array]) -> Examples | None:
    """The server's examples, unless it has none."""
    if "own_x" in arrays:
        server_examples = np.array(arrays["own_x"]), np.array(arrays["own_y"])
    else:
        server_examples = data.columns["x"][arrays["own"]], data.columns["y"][arrays["own"]]
    return server_examples if len(server_examples[0]) else None


def _filter_server_rows(
    data: StoredDataset, options: Options, assignment: ClientAssignment, server_x: Array, rows: Rows
) -> Rows:
    """Which of these rows, of examples drawn for the server, it keeps.

    None that equals a client's; or, if they may overlap, none that a client is tested on.
    """
    parts = [assignment.splits["test"]] if options["overlap"] else assignment.splits.values()
    server_hashes, x = content_hash.hash_examples(server_x, rows), data.columns["x"]
    shared = [np.zeros(0, np.uint64)]
    for split in {id(split): split for split in parts}.values():
        for start in range(0, len(split.index), 1 << 20):
            held = np.asarray(split.index[start : start + (1 << 20)])
            shared.append(
                content_hash.hash_examples(
                    x, held[content_hash.is_duplicate(x, held, server_hashes)]
                )
            )
    return np.flatnonzero(~np.isin(server_hashes, np.concatenate(shared)))


def augment_clients(
    x: Array, parts: dict[str, Split], client_ids: Rows, rng: np.random.Generator
) -> Array:
    """A copy of images of which each of these people's are turned and mirrored, in a way of that person's own."""
    changed = np.array(x)
    require(
        x.ndim == 4 and x.shape[2] == x.shape[3],
        f"augment needs square images, got {list(x.shape[1:])} of each.",
    )
    for client, turns, mirrored in zip(
        client_ids,
        rng.integers(0, 4, len(client_ids)),
        rng.random(len(client_ids)) < 0.5,
        strict=True,
    ):
        rows = np.unique(np.concatenate([split.get_rows(int(client)) for split in parts.values()]))
        turned = np.rot90(x[rows], turns, (2, 3))
        changed[rows] = turned[..., ::-1] if mirrored else turned
    return changed
