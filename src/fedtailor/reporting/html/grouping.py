"""Records that belong together: the runs of a line of the report differ in their seed alone."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedtailor.errors import InputError, require
from fedtailor.training.config import is_fine_tuned_baseline
from fedtailor.training.record.schema import RunRecord

SEED_OPTIONS = ("seed", "data_options.seed")
"""Options in which the runs of a line may differ."""

Options = dict[str, Any]
"""Values of a configuration by their dotted names."""


class ReportLine(NamedTuple):
    """The runs of one method with one set of options."""

    label: str
    name: str
    runs: tuple[RunRecord, ...]

    @property
    def method(self) -> str:
        """The method's name, without the label that tells variants of it apart."""
        return self.runs[0].config.method

    @property
    def label_after(self) -> str:
        """The label of scores after personalizing; FedAvg does that by fine-tuning."""
        if is_fine_tuned_baseline(self.method):
            return f"{self.label} + fine-tuning"
        return self.label


class HeadlineMetric(NamedTuple):
    """The headline metric, and how it is shown."""

    name: str
    higher_is_better: bool
    is_percent: bool

    @property
    def unit(self) -> str:
        """The name with its unit."""
        return f"{self.name} in %" if self.is_percent else self.name

    @property
    def scale(self) -> float:
        """The value that is shown as 1."""
        return 0.01 if self.is_percent else 1.0

    @property
    def choices(self) -> list[str]:
        """The metrics that charts can show: the headline metric, and the loss."""
        return list(dict.fromkeys((self.name, "loss")))


def group_into_lines(records: Sequence[RunRecord]) -> list[ReportLine]:
    """Group records into lines, in the order of their first runs.

    Raises:
        InputError: There are no records, or they cannot be compared.
    """
    _check_comparable(records)
    runs_by_options: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        options = json.dumps(_collect_options(record), sort_keys=True)
        runs_by_options.setdefault((record.name, options), []).append(record)
    run_groups = list(runs_by_options.values())
    return [
        ReportLine(_make_label(runs[0], run_groups), runs[0].name, tuple(runs))
        for runs in run_groups
    ]


def get_metric(lines: Sequence[ReportLine]) -> HeadlineMetric:
    """Return the headline metric, which all records share."""
    metric = lines[0].runs[0].metric
    return HeadlineMetric(metric.name, metric.higher_is_better, metric.is_percent)


def list_runs(lines: Sequence[ReportLine]) -> list[tuple[ReportLine, RunRecord]]:
    """Return every run with its line."""
    return [(line, run) for line in lines for run in line.runs]


def _check_comparable(records: Sequence[RunRecord]) -> None:
    require(len(records) > 0, "A report needs at least one record, got none.")
    _require_one("data set", [record.data.name for record in records])
    _require_one("metric", [record.metric.name for record in records])
    _require_one("eval_groups", [record.config.eval_groups for record in records])
    _check_same_clients(records)


def _require_one(noun: str, values: Sequence[str]) -> None:
    distinct = list(dict.fromkeys(values))
    require(
        len(distinct) == 1,
        f"A report needs runs with the same {noun}, got {', '.join(distinct)}; "
        "make one report for each.",
    )


def _check_same_clients(records: Sequence[RunRecord]) -> None:
    """Raise an error if runs of one seed had other clients or examples.

    The page compares clients one by one.
    """
    first_by_seed: dict[int, RunRecord] = {}
    for record in records:
        seed = record.config.seed
        first = first_by_seed.setdefault(seed, record)
        if record.checksums.data == first.checksums.data:
            continue
        difference = _describe_data_difference(first, record)
        raise InputError(
            f"Runs of a report must have the same clients, but with seed {seed} '{first.name}' "
            f"and '{record.name}' differ in {difference}; make one report for each."
        )


def _describe_data_difference(one: RunRecord, other: RunRecord) -> str:
    """Return the data options in which two runs differ, as in "alpha=0.1 and alpha=0.5"."""
    options = dict(_flatten(one.config.data_options))
    other_options = dict(_flatten(other.config.data_options))
    differing = [
        key for key in options | other_options if options.get(key) != other_options.get(key)
    ]
    if not differing:
        return "their data"
    sides = [
        ", ".join(f"{key}={side.get(key)}" for key in differing)
        for side in (options, other_options)
    ]
    return " and ".join(sides)


def _make_label(record: RunRecord, run_groups: Sequence[Sequence[RunRecord]]) -> str:
    """Return the run's name, with the options in which it differs from other lines of that name."""
    options = _collect_options(record)
    others = [_collect_options(runs[0]) for runs in run_groups if runs[0].name == record.name]
    differing = [key for key in options if any(other.get(key) != options[key] for other in others)]
    if not differing:
        return record.name
    texts = [f"{key.removeprefix('hparams.')}={options[key]}" for key in differing]
    return f"{record.name} ({', '.join(texts)})"


def _collect_options(record: RunRecord) -> Options:
    """Return a run's options without its seeds, and without values that were chosen for a seed."""
    options = dict(_flatten(record.config.model_dump(mode="json")))
    left_out = {*SEED_OPTIONS, *(f"hparams.{name}" for name in record.config.tuned)}
    return {key: value for key, value in options.items() if key not in left_out}


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested mappings with their dotted names."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
