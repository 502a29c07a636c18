"""Which records belong together: the runs of one line of the report differ in their seed alone."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedtailor.errors import require

Record = Mapping[str, Any]
FORMAT = 1
SEED_AND_PATH_KEYS = ("seed", "data_options.seed", "out")
PERCENT_METRICS = (
    "accuracy",
    "f1",
    "precision",
    "recall",
    "auc",
)  # figures from 0 to 1, shown in %


class ReportLine(NamedTuple):
    """Runs of one method with one set of options."""

    label: str
    name: str
    runs: tuple[Record, ...]

    @property
    def method(self) -> str:
        """The method's name without a label that tells it from others of its name."""
        found: str = self.runs[0]["config"].get("method", self.name)
        return found

    @property
    def tuned_label(self) -> str:
        """The label of what comes after personalizing; averaging alone does not personalize, fine-tuning does."""
        return f"{self.label} + fine-tuning" if self.method == "fedavg" else self.label


class HeadlineMetric(NamedTuple):
    """The headline figure, and how it is shown."""

    name: str
    higher_is_better: bool
    percent: bool

    @property
    def unit(self) -> str:
        """The name with its unit."""
        return f"{self.name} in %" if self.percent else self.name

    @property
    def scale(self) -> float:
        """What one of the unit that it is shown in is."""
        return 0.01 if self.percent else 1.0

    @property
    def figures(self) -> list[str]:
        """The headline figure, and the loss beside it."""
        return list(dict.fromkeys((self.name, "loss")))


def group_into_lines(records: Sequence[Record]) -> list[ReportLine]:
    """Sorts records into lines, in the order in which they came."""
    _check_records(records)
    runs_by_options: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        options = _collect_options(record, records)
        runs_by_options.setdefault(
            (record["name"], json.dumps(options, sort_keys=True)), []
        ).append(record)
    run_groups = list(runs_by_options.values())
    return [
        ReportLine(_make_label(runs[0], run_groups, records), runs[0]["name"], tuple(runs))
        for runs in run_groups
    ]


def get_metric(lines: Sequence[ReportLine]) -> HeadlineMetric:
    """The headline figure, the same in every record."""
    found = lines[0].runs[0]["metric"]
    return HeadlineMetric(
        found["name"], found["higher_is_better"], found["name"] in PERCENT_METRICS
    )


def list_runs(lines: Sequence[ReportLine]) -> list[tuple[ReportLine, Record]]:
    """Every run with its line."""
    return [(line, run) for line in lines for run in line.runs]


def get_seed(record: Record) -> Any:
    """The run's seed; None where the specification has none."""
    return record["config"].get("seed")


def _check_records(records: Sequence[Record]) -> None:
    require(len(records) > 0, "A report needs at least one record, got none.")
    for record in records:
        require(
            record.get("format") == FORMAT,
            f"A record must have format {FORMAT}, got {record.get('format')!r}.",
        )
    for key in ("data", "metric"):
        names = list(dict.fromkeys(str(record[key]["name"]) for record in records))
        require(
            len(names) == 1,
            f"A report is about one {key}, got {', '.join(names)}; make one report for each.",
        )
    scored = list(dict.fromkeys(record["config"].get("eval_groups", "all") for record in records))
    require(
        len(scored) == 1,
        f"A report is about the same clients, got scores of {' and of '.join(scored)}; make one for each.",
    )
    _check_same_data(records)


def _check_same_data(records: Sequence[Record]) -> None:
    """Runs can be told apart client by client if those of one seed had the same clients with the same examples."""
    first: dict[Any, Record] = {}
    for record in records:
        known = first.setdefault(get_seed(record), record)
        difference = _describe_data_difference(known, record)
        require(
            not difference,
            f"Runs of a report must have the same clients, but with seed {get_seed(record)} '{known['name']}' and "
            f"'{record['name']}' differ in {difference}; make one report for each.",
        )


def _describe_data_difference(one: Record, other: Record) -> str:
    """In which options the data differ, in words; nothing if they are the same."""
    sums = [record.get("checksums", {}).get("data") for record in (one, other)]
    is_same = sums[0] == sums[1] or None in sums  # records from before say only what was asked for
    if is_same and None not in sums:
        return ""
    options = [dict(flatten(record["config"].get("data_options", {}))) for record in (one, other)]
    named = [
        key for key in {**options[0], **options[1]} if options[0].get(key) != options[1].get(key)
    ]
    sides = [", ".join(f"{key}={option.get(key)}" for key in named) for option in options]
    return " and ".join(sides) if named else "" if is_same else "their data"


def _make_label(record: Record, run_groups: list[list[Record]], records: Sequence[Record]) -> str:
    """The method's name, with the options in which it differs from others of its name."""
    name: str = record["name"]
    own = _collect_options(record, records)
    others = [_collect_options(runs[0], records) for runs in run_groups if runs[0]["name"] == name]
    differing = [key for key in own if any(other.get(key) != own[key] for other in others)]
    options = ", ".join(f"{key.removeprefix('hparams.')}={own[key]}" for key in differing)
    return f"{name} ({options})" if options else name


def _collect_options(record: Record, records: Sequence[Record]) -> dict[str, Any]:
    """What a run was asked for, as far as all records of its name say it: older ones know fewer options."""
    known = [
        {key for key, _ in flatten(each["config"])}
        for each in records
        if each["name"] == record["name"]
    ]
    common = set.intersection(*known) - set(SEED_AND_PATH_KEYS)
    return {key: value for key, value in flatten(record["config"]) if key in common}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings with dotted keys."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
