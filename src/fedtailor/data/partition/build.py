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
from fedtailor.data.partition.options import ScenarioOptions, parse_options, resolve_options
from fedtailor.data.rng import make_rng
from fedtailor.data.server_data import Examples
from fedtailor.data.server_data.damage import damage_examples
from fedtailor.data.sources import CATALOG, count_classes, open_dataset
from fedtailor.data.store import CachedScenario, StoredDataset, load_or_build_scenario
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


def load_federated(name: str, **overrides: Any) -> FederatedDataset:
    """Load a data set that has been added, partitioned among clients by the options.

    `fedtailor data NAME` lists all options, as `format_option_help` does. One that has no effect
    beside the others is refused.

    Without overlap no client has an example that equals one of the server's. If the server draws
    from all examples, clients lose theirs. From other sources, and of texts, where many clients
    have the same short sentence, the server gives up its own.

    Args:
        name: Name of the data set.
        overrides: Options that differ from the defaults, and from the data set's own.
    """
    values = resolve_options(name, get_dataset_defaults(name), overrides)
    options = parse_options(values)
    data = open_dataset(name)
    options.general.split_config.validate(name)
    scenario_key = {"assignment_version": ASSIGNMENT_VERSION, **values}
    if options.server_source.hash_content is not None:
        scenario_key["server_identity"] = options.server_source.hash_content()
    build = partial(_build_scenario, data, options)
    scenario = load_or_build_scenario(data, scenario_key, build)
    assignment = _restore_assignment(scenario)
    server_examples = _load_server_examples(data, scenario.arrays)
    return _build_dataset(data, options, assignment, server_examples, should_check=False)


def get_dataset_defaults(name: str) -> dict[str, Any]:
    """Return a data set's own defaults, which replace those of the options."""
    if name in CATALOG:
        return dict(CATALOG[name].defaults)
    return {"server_from": "own"} if open_dataset(name).server_columns else {}


def _build_scenario(data: StoredDataset, options: ScenarioOptions) -> CachedScenario:
    """Return the assignment in the form in which it is stored, after checking the dataset."""
    assignment = assign_clients(data, options)
    arrays = _select_server_arrays(data, options, assignment)
    server_examples = _load_server_examples(data, arrays)
    # Of larger data sets, all that is checked here already holds by construction.
    should_check = data.num_rows <= MAX_CHECKED_ROWS
    _build_dataset(data, options, assignment, server_examples, should_check)
    for group, client_ids in assignment.groups.items():
        arrays[f"group_{group}"] = client_ids
    arrays["client_names"] = assignment.client_names
    arrays["relabeled_clients"] = assignment.relabeled_clients
    if assignment.y is not None:
        arrays["y"] = assignment.y
    return CachedScenario(assignment.splits, arrays)


def _restore_assignment(scenario: CachedScenario) -> ClientAssignment:
    """Return the assignment of a scenario; the server's rows are in its arrays."""
    arrays = scenario.arrays
    groups = {}
    for array_name, array in arrays.items():
        if array_name.startswith("group_"):
            groups[array_name.removeprefix("group_")] = array
    return ClientAssignment(
        splits=scenario.splits,
        groups=groups,
        client_names=arrays["client_names"],
        server_rows=NO_ROWS,
        y=arrays.get("y"),
        relabeled_clients=arrays["relabeled_clients"],
    )


def _build_dataset(
    data: StoredDataset,
    options: ScenarioOptions,
    assignment: ClientAssignment,
    server_examples: Examples | None,
    should_check: bool,
) -> FederatedDataset:
    """Return the dataset of an assignment, with augmented clients and damaged server data."""
    attributes = data.attributes
    classes = count_classes(data)
    general = options.general
    x = data.columns["x"]
    y = data.columns["y"]
    columns_hash = data.content_hash
    if assignment.y is not None:
        y = assignment.y
        columns_hash = ""
    if options.conditional.augment:
        rng = make_rng(general.seed, DataStream.AUGMENT)
        x = augment_clients(x, assignment.splits, assignment.relabeled_clients, rng)
        columns_hash = ""
    if server_examples is not None and general.server_damage != "none":
        server_x, server_y = server_examples
        server_examples = damage_examples(
            server_x,
            server_y,
            classes or 1,
            damage=general.server_damage,
            amount=options.conditional.server_amount,
            rng=make_rng(general.seed, DataStream.DAMAGE),
        )
    server = None
    overlap = ""
    if server_examples is not None:
        server = single_client(*server_examples)
        overlap = OVERLAP_REASON if general.overlap else ""
    return FederatedDataset(
        name=data.name,
        clients=ClientExamples(x, y, assignment.splits),
        client_names=assignment.client_names,
        groups=assignment.groups,
        server=server,
        classes=classes,
        scale=attributes.scale,
        tokens=attributes.tokens,
        padding=attributes.padding,
        unscored_tokens=attributes.unscored_tokens,
        support=general.support,
        content_hash=columns_hash,
        overlap=overlap,
        should_check=should_check,
    )


def _select_server_arrays(
    data: StoredDataset, options: ScenarioOptions, assignment: ClientAssignment
) -> dict[str, Array]:
    """Return the server's data in the form in which it is stored.

    It is "server_rows", rows of the data set, or "server_x" and "server_y", examples from
    elsewhere. Examples that the server must give up are left out.
    """
    general = options.general
    rows = assignment.server_rows
    if not general.server:
        return {"server_rows": rows}
    make_examples = options.server_source.make_examples
    if make_examples is None:
        kept = _select_server_positions(data, options, assignment, data.columns["x"], rows)
        return {"server_rows": rows[kept]}
    x, y = make_examples(data, general.server, make_rng(general.seed, DataStream.STORE_SERVER))
    kept = _select_server_positions(data, options, assignment, x, np.arange(len(x)))
    return {"server_x": x[kept], "server_y": y[kept]}


def _load_server_examples(data: StoredDataset, arrays: dict[str, Array]) -> Examples | None:
    """Return the server's examples, or None if it has none."""
    if "server_x" in arrays:
        x = np.array(arrays["server_x"])
        y = np.array(arrays["server_y"])
    else:
        x = data.columns["x"][arrays["server_rows"]]
        y = data.columns["y"][arrays["server_rows"]]
    return (x, y) if len(x) > 0 else None


def _select_server_positions(
    data: StoredDataset,
    options: ScenarioOptions,
    assignment: ClientAssignment,
    server_x: Array,
    rows: Rows,
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
    general = options.general
    splits = list(assignment.splits.values())
    if general.overlap:
        splits = [assignment.splits["test"]]
    server_hashes = content_hash.hash_examples(server_x, rows)
    shared_hashes = _find_shared_hashes(data.columns["x"], splits, server_hashes)
    kept = np.flatnonzero(~np.isin(server_hashes, shared_hashes))
    if general.overlap:
        reason = "are tested on"
        advice = f"ask for more than {general.server}"
    else:
        reason = "have"
        advice = f"ask for more than {general.server}, or for overlap=true"
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
