"""`load_federated`: a stored data set, partitioned among clients and the server.

Examples stay in the store, memory-mapped. Which rows each client has is computed once for the same
options and kept beside the store as a scenario.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import require_bool
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.equality import find_equal_examples
from fedtailor.data.examples import (
    UNASSIGNED,
    Array,
    ClientExamples,
    Split,
    mark_rows,
    single_client,
)
from fedtailor.data.partition.assign import NO_ROWS, ClientAssignment, assign_clients
from fedtailor.data.partition.options import (
    GeneralOptions,
    ScenarioOptions,
    parse_options,
    resolve_options,
)
from fedtailor.data.rng import make_rng
from fedtailor.data.row_counts import RowCounts
from fedtailor.data.server_data import Examples
from fedtailor.data.server_data.damage import damage_examples
from fedtailor.data.sources import CATALOG, count_classes, open_dataset
from fedtailor.data.store import CachedScenario, StoredDataset, load_or_build_scenario
from fedtailor.errors import require
from fedtailor.prng.streams import DataStream

ASSIGNMENT_VERSION = 4
"""Version of the code that assigns examples; scenarios of other versions are not read."""

MAX_CHECKED_ROWS = 1 << 24
"""Largest number of examples of a data set that is checked when its scenario is built."""

Rows = NDArray[np.int64]


def load_federated(name: str, **overrides: Any) -> FederatedDataset:
    """Load a data set that has been added, partitioned among clients by the options.

    `fedtailor data NAME` lists all options, as `format_option_help` does. One that has no effect
    beside the others is refused.

    Without overlap no client has a row that the server draws from the data set, nor an example
    that equals one of the server's from elsewhere in x and y: the server gives those up.

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
    dataset = _build_dataset(data, options, assignment, server_examples, should_check=False)
    return replace(dataset, row_counts=_restore_counts(scenario.arrays), should_check=False)


def get_dataset_defaults(name: str) -> dict[str, Any]:
    """Return a data set's own defaults, which replace those of the options."""
    if name in CATALOG:
        return dict(CATALOG[name].defaults)
    return {"server_from": "own"} if open_dataset(name).server_columns else {}


def _build_scenario(data: StoredDataset, options: ScenarioOptions) -> CachedScenario:
    """Return the assignment in the form in which it is stored, after checking the dataset."""
    assignment = assign_clients(data, options)
    arrays, num_given_up = _select_server_arrays(data, options, assignment)
    assignment = assignment._replace(server_rows=arrays.get("server_rows", NO_ROWS))
    server_examples = _load_server_examples(data, arrays)
    # Of larger data sets, all that is checked here already holds by construction.
    should_check = data.num_rows <= MAX_CHECKED_ROWS
    dataset = _build_dataset(data, options, assignment, server_examples, should_check)
    row_counts = dataset.row_counts.name_unassigned(assignment.unassigned_reason)
    arrays |= _store_counts(row_counts._replace(given_up=num_given_up))
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
        server_rows=arrays.get("server_rows", NO_ROWS),
        y=arrays.get("y"),
        relabeled_clients=arrays["relabeled_clients"],
        left_out={},
        unassigned_reason="",
    )


def _store_counts(row_counts: RowCounts) -> dict[str, Array]:
    """Return the counts of a dataset's rows as arrays."""
    left_out = row_counts.left_out
    numbers = {name: n for name, n in row_counts._asdict().items() if name != "left_out"}
    return {
        "row_counts": np.array(list(numbers.values()), np.int64),
        "left_out_reasons": np.array(list(left_out), str),
        "left_out_counts": np.array(list(left_out.values()), np.int64),
    }


def _restore_counts(arrays: dict[str, Array]) -> RowCounts:
    """Return the counts that `_store_counts` turned into arrays."""
    reasons = arrays["left_out_reasons"].tolist()
    left_out = dict(zip(reasons, arrays["left_out_counts"].tolist(), strict=True))
    names = [name for name in RowCounts._fields if name != "left_out"]
    numbers = dict(zip(names, arrays["row_counts"].tolist(), strict=True))
    return RowCounts(left_out=left_out, **numbers)


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
    require_bool(data.name, "augment", options.conditional.augment)
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
    if server_examples is not None:
        server = single_client(*server_examples)
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
        overlap=general.overlap and server is not None,
        server_rows=assignment.server_rows if len(assignment.server_rows) > 0 else None,
        left_out=assignment.left_out,
        should_check=should_check,
    )


def _select_server_arrays(
    data: StoredDataset, options: ScenarioOptions, assignment: ClientAssignment
) -> tuple[dict[str, Array], int]:
    """Return the server's data in the form in which it is stored, and how many it gives up.

    It is "server_rows", rows of the data set, or "server_x" and "server_y", examples from
    elsewhere. The server gives up examples from elsewhere that equal a client's in x and y. With
    `overlap` it only gives up those, and rows of the data set, that a client is tested on.
    """
    general = options.general
    rows = assignment.server_rows
    if not general.server:
        return {"server_rows": rows}, 0
    splits = list(assignment.splits.values())
    if general.overlap:
        splits = [assignment.splits["test"]]
    make_examples = options.server_source.make_examples
    if make_examples is None:
        is_kept = np.ones(len(rows), bool)
        if general.overlap:
            is_kept = ~mark_rows(splits, data.num_rows)[rows]
        _require_any_kept(data.name, general, is_kept)
        return {"server_rows": rows[is_kept]}, int((~is_kept).sum())
    x, y = make_examples(data, general.server, make_rng(general.seed, DataStream.STORE_SERVER))
    clients = data.to_client_examples(assignment.splits)
    is_compared = mark_rows(splits, data.num_rows)
    is_kept = find_equal_examples(single_client(x, y), clients, is_compared) == UNASSIGNED
    _require_any_kept(data.name, general, is_kept)
    return {"server_x": x[is_kept], "server_y": y[is_kept]}, int((~is_kept).sum())


def _require_any_kept(name: str, general: GeneralOptions, is_kept: NDArray[np.bool_]) -> None:
    """Raise `InputError` if the server may keep none of the examples drawn for it.

    Args:
        name: Data set that the error names.
        general: Options that the error names.
        is_kept: Whether the server keeps each example, [examples].
    """
    reason = "clients are tested on" if general.overlap else "clients have equals of"
    advice = f"ask for more than {general.server}"
    if not general.overlap:
        advice += ", or for overlap=true"
    require(
        bool(is_kept.any()),
        f"{name}: the server must have an example of its own, but {reason} all {len(is_kept)} "
        f"drawn for it; {advice}.",
    )


def _load_server_examples(data: StoredDataset, arrays: dict[str, Array]) -> Examples | None:
    """Return the server's examples, or None if it has none."""
    if "server_x" in arrays:
        x = np.array(arrays["server_x"])
        y = np.array(arrays["server_y"])
    else:
        x = data.columns["x"][arrays["server_rows"]]
        y = data.columns["y"][arrays["server_rows"]]
    return (x, y) if len(x) > 0 else None


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
