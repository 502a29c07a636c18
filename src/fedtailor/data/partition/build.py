"""`load_federated`: a stored data set, partitioned among clients and the server.

Examples stay in the store, memory-mapped. Which rows each client has is computed once for the same
options and kept beside the store as a scenario.
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
"""Version of the code that assigns examples; scenarios of other versions are not read."""

MAX_CHECKED_ROWS = 1 << 24
"""Largest number of examples of a data set that is checked when its scenario is built."""

OVERLAP_REASON = "clients train on examples that the server has drawn from them, or has too"
"""Reason that a dataset with `overlap` gives in its records."""

HASHED_ROWS = 1 << 20
"""Number of clients' examples that are compared with the server's at a time."""

Rows = NDArray[np.int64]
Options = dict[str, Any]
Examples = tuple[Array, Array]


def load_federated(name: str, **overrides: Any) -> FederatedDataset:
    """Load a data set that has been added, partitioned among clients by the options.

    An option that has no effect beside the others is refused.

    partition      how examples are assigned to clients, with options of its own:
      natural        by the data set's own clients. `least`: those with fewer examples are left out;
                     `most`: number of examples used of each; `clients`: number of clients, chosen
                     at random (None: all); `reserved`: see server_from
      two-labels     two labels for each client and uneven sizes, as in FedMeta-Per (there with
                     test_share=0.25, adapt=0.2). A share `used` of the examples is divided by
                     weights from 1 to `ratio`; each client has at least `least` examples
      half-and-half  as in Per-FedAvg. Every other client has `images` examples of each label of the
                     first half; the rest have images / 2 of one of those labels (none with
                     `drop_half`) and 2 * images of one label of the second half
      few-labels     as in FSL. Each client has `labels` labels and `size` examples, equally many of
                     each label (None: as many as possible)
      shards         each client has `shards` equal shards of the examples sorted by label
      dirichlet      each label is divided by shares from Dirichlet(`alpha`); each client has at
                     least `least` examples
      quantity       random examples, with sizes by shares from Dirichlet(`alpha`), at least `least`
      pachinko       `size` examples by shares of coarse (`alpha`) and fine labels (`beta`), as for
                     federated CIFAR-100
      iid            random examples, equal sizes
    clients          number of clients
    others           partition of a share `others_share` of the clients
    zeta             a share 1 - zeta of the clients permutes the labels, each client in its own way
                     (and, with `augment`, rotates and mirrors its images in its own way): AFML's
                     mutually exclusive clients
    server           amount of the server's data: a share (float), a number (int), 0: none
    server_from      where it comes from:
      examples       all examples, at random
      classes        all examples, equally many of each class
      people         clients, all of whose examples become the server's. With partition=natural, an
                     amount `reserved` of clients is taken out whatever amount the server has
      clients        clients, `server_each` examples of each
      rendered       characters rendered with `server_fonts`, `server_rotations`, `server_points`;
                     with `server_fill` as large as those of EMNIST
      set            `server_set`, another data set, whose classes have the same names
    server_damage    corruption of the server's examples, by `server_amount`
    overlap          clients keep the examples that the server draws from them, as in FSL's paper;
                     the server gives up those that are some client's test examples
    split            examples for test: random, the last ones of each client, or the data set's own
    test_share, validation_clients, unseen_clients, adapt, support, seed    as for `from_arrays`

    Without overlap no client has an example that equals one of the server's. If the server draws
    from all examples, clients lose theirs. From other sources, and of texts, where many clients
    have the same short sentence, the server gives up its own.
    """
    options = fill_defaults(name, get_dataset_defaults(name), overrides)
    data = open_dataset(name)
    split_config = _make_split_config(options)
    split_config.validate(name)
    scenario_key = {"division": ASSIGNMENT_VERSION, **options}
    if options.get("server_set"):
        # The key changes with the content of the other data set.
        scenario_key["server_identity"] = open_dataset(options["server_set"]).content_hash
    build = partial(_build_scenario, data, options)
    scenario = load_or_build_scenario(data, scenario_key, build)
    assignment = _restore_assignment(scenario)
    server_examples = _load_server_examples(data, scenario.arrays)
    return _build_dataset(data, options, assignment, server_examples, skip_checks=True)


def get_dataset_defaults(name: str) -> Options:
    """Return a data set's own defaults, which replace those of the options."""
    return dict(CATALOG[name].defaults) if name in CATALOG else {}


def _make_split_config(options: Options) -> SplitConfig:
    return SplitConfig(*(options[field] for field in SplitConfig._fields))


def _build_scenario(data: StoredDataset, options: Options) -> StoredScenario:
    """Return the assignment in the form in which it is stored, after checking the dataset."""
    assignment = assign_clients(data, options, _make_split_config(options))
    arrays = _select_server_arrays(data, options, assignment)
    server_examples = _load_server_examples(data, arrays)
    # Of larger data sets, all that is checked here already holds by construction.
    skip_checks = data.num_rows > MAX_CHECKED_ROWS
    _build_dataset(data, options, assignment, server_examples, skip_checks)
    for group, client_ids in assignment.groups.items():
        arrays[f"group_{group}"] = client_ids
    arrays["ids"] = assignment.client_names
    arrays["relabelled"] = assignment.relabeled_clients
    if assignment.y is not None:
        arrays["y"] = assignment.y
    return StoredScenario(assignment.splits, arrays)


def _restore_assignment(scenario: StoredScenario) -> ClientAssignment:
    """Return the assignment of a scenario; the server's rows are in its arrays."""
    arrays = scenario.arrays
    groups = {}
    for array_name, array in arrays.items():
        if array_name.startswith("group_"):
            groups[array_name.removeprefix("group_")] = array
    return ClientAssignment(
        splits=scenario.splits,
        groups=groups,
        client_names=arrays["ids"],
        server_rows=NO_ROWS,
        y=arrays.get("y"),
        relabeled_clients=arrays["relabelled"],
    )


def _build_dataset(
    data: StoredDataset,
    options: Options,
    assignment: ClientAssignment,
    server_examples: Examples | None,
    skip_checks: bool,
) -> FederatedDataset:
    """Return the dataset of an assignment, with augmented clients and damaged server data."""
    attributes = data.attributes
    classes = count_classes(data)
    seed = options["seed"]
    x = data.columns["x"]
    y = data.columns["y"]
    columns_hash = data.content_hash
    if assignment.y is not None:
        y = assignment.y
        columns_hash = ""
    if options.get("augment"):
        rng = make_rng(seed, DataStream.AUGMENT)
        x = augment_clients(x, assignment.splits, assignment.relabeled_clients, rng)
        columns_hash = ""
    if server_examples is not None and options["server_damage"] != "none":
        server_x, server_y = server_examples
        server_examples = damage_examples(
            server_x,
            server_y,
            classes or 1,
            damage=options["server_damage"],
            amount=options["server_amount"],
            rng=make_rng(seed, DataStream.DAMAGE),
        )
    server = None
    overlap = ""
    if server_examples is not None:
        server = single_client(*server_examples)
        overlap = OVERLAP_REASON if options["overlap"] else ""
    return FederatedDataset(
        name=data.name,
        clients=ClientExamples(x, y, assignment.splits),
        client_names=assignment.client_names,
        groups=assignment.groups,
        server=server,
        classes=classes,
        scale=attributes.get("scale", 1.0),
        tokens=attributes.get("tokens", False),
        padding=tuple(attributes.get("padding", ())),
        unscored_tokens=tuple(attributes.get("uncounted", ())),
        support=options["support"],
        content_hash=columns_hash,
        overlap=overlap,
        skip_checks=skip_checks,
    )


def _select_server_arrays(
    data: StoredDataset, options: Options, assignment: ClientAssignment
) -> dict[str, Array]:
    """Return the server's data in the form in which it is stored.

    It is "own", rows of the data set, or "own_x" and "own_y", examples from elsewhere. Examples
    that the server must give up are left out.
    """
    if not options["server"]:
        return {"own": assignment.server_rows}
    rng = make_rng(options["seed"], DataStream.STORE_SERVER)
    external = make_external_examples(data, options, rng)
    if external is None:
        rows = assignment.server_rows
        kept = _select_server_positions(data, options, assignment, data.columns["x"], rows)
        return {"own": rows[kept]}
    x, y = external
    kept = _select_server_positions(data, options, assignment, x, np.arange(len(x)))
    return {"own_x": x[kept], "own_y": y[kept]}


def _load_server_examples(data: StoredDataset, arrays: dict[str, Array]) -> Examples | None:
    """Return the server's examples, or None if it has none."""
    if "own_x" in arrays:
        x = np.array(arrays["own_x"])
        y = np.array(arrays["own_y"])
    else:
        x = data.columns["x"][arrays["own"]]
        y = data.columns["y"][arrays["own"]]
    return (x, y) if len(x) > 0 else None


def _select_server_positions(
    data: StoredDataset, options: Options, assignment: ClientAssignment, server_x: Array, rows: Rows
) -> Rows:
    """Return the positions in `rows` of the examples that the server may keep; at least one.

    It gives up examples that equal a client's, or, with `overlap`, a client's test example.

    Args:
        data: Stored data set.
        options: All options that apply.
        assignment: The clients' rows.
        server_x: Column of the data set, or of examples from elsewhere.
        rows: Rows of `server_x` that are drawn for the server.
    """
    splits = list(assignment.splits.values())
    if options["overlap"]:
        splits = [assignment.splits["test"]]
    server_hashes = content_hash.hash_examples(server_x, rows)
    shared_hashes = _find_shared_hashes(data.columns["x"], splits, server_hashes)
    kept = np.flatnonzero(~np.isin(server_hashes, shared_hashes))
    if options["overlap"]:
        reason = "are tested on"
        advice = f"ask for more than {options['server']}"
    else:
        reason = "have"
        advice = f"ask for more than {options['server']}, or for overlap=true"
    require(
        len(kept) > 0,
        f"{data.name}: the server must have an example of its own, but clients {reason} equals of "
        f"all {len(rows)} drawn for it; {advice}.",
    )
    return kept


def _find_shared_hashes(
    x: Array, splits: list[Split], server_hashes: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Return the hashes of clients' examples, in some splits, that equal one of the server's."""
    shared_hashes = [np.zeros(0, np.uint64)]
    distinct_splits = {id(split): split for split in splits}
    for split in distinct_splits.values():
        for start in range(0, len(split.index), HASHED_ROWS):
            rows = np.asarray(split.index[start : start + HASHED_ROWS])
            shared_rows = rows[content_hash.is_duplicate(x, rows, server_hashes)]
            shared_hashes.append(content_hash.hash_examples(x, shared_rows))
    return np.concatenate(shared_hashes)


def augment_clients(
    x: Array, splits: dict[str, Split], client_ids: Rows, rng: np.random.Generator
) -> Array:
    """Return a copy of images in which some clients' are rotated and mirrored, each in its own way.

    Args:
        x: Square images, [examples, channels, side, side].
        splits: Splits with the rows of all clients.
        client_ids: Clients whose images change.
        rng: Draws rotations by 0, 90, 180 or 270 degrees, and which clients mirror.
    """
    augmented = np.array(x)
    require(
        x.ndim == 4 and x.shape[2] == x.shape[3],
        f"augment needs square images, got {list(x.shape[1:])} of each.",
    )
    quarter_turns = rng.integers(0, 4, len(client_ids))
    is_mirrored = rng.random(len(client_ids)) < 0.5
    for position, client in enumerate(client_ids.tolist()):
        rows = np.unique(np.concatenate([split.get_rows(client) for split in splits.values()]))
        images = np.rot90(x[rows], quarter_turns[position], (2, 3))
        if is_mirrored[position]:
            images = images[..., ::-1]
        augmented[rows] = images
    return augmented
