"""Which records belong together: the runs of one line of the report differ in their seed alone."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedtailor.errors import require

Record = Mapping[str, Any]
FORMAT = 1
SEEDS_AND_PLACES = ("seed", "data_options.seed", "out")
SHARES = ("accuracy", "f1", "precision", "recall", "auc")  # figures from 0 to 1, shown in %


class Line(NamedTuple):
    """Runs of one method with one set of options."""

    label: str
    name: str
    runs: tuple[Record, ...]

    @property
    def method(self) -> str:
        """The method's name without a label that tells it from others of its name."""
        found: str = self.runs[0]["spec"].get("method", self.name)
        return found

    @property
    def tuned_label(self) -> str:
        """The label of what comes after personalising; averaging alone does not personalise, fine-tuning does."""
        return f"{self.label} + fine-tuning" if self.method == "fedavg" else self.label


class Metric(NamedTuple):
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


def lines_of(records: Sequence[Record]) -> list[Line]:
    """Sorts records into lines, in the order in which they came."""
    _check(records)
    kinds: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        options = _options(record, records)
        kinds.setdefault((record["name"], json.dumps(options, sort_keys=True)), []).append(record)
    groups = list(kinds.values())
    return [Line(_label(runs[0], groups, records), runs[0]["name"], tuple(runs)) for runs in groups]


def metric_of(lines: Sequence[Line]) -> Metric:
    """The headline figure, the same in every record."""
    found = lines[0].runs[0]["metric"]
    return Metric(found["name"], found["higher_is_better"], found["name"] in SHARES)


def runs_of(lines: Sequence[Line]) -> list[tuple[Line, Record]]:
    """Every run with its line."""
    return [(line, run) for line in lines for run in line.runs]


def seed_of(record: Record) -> Any:
    """The run's seed; None where the specification has none."""
    return record["spec"].get("seed")


def _check(records: Sequence[Record]) -> None:
    require(len(records) > 0, "A report needs at least one record, got none.")
    for record in records:
        require(record.get("format") == FORMAT, f"A record must have format {FORMAT}, got {record.get('format')!r}.")
    for what in ("data", "metric"):
        names = list(dict.fromkeys(str(record[what]["name"]) for record in records))
        require(len(names) == 1, f"A report is about one {what}, got {', '.join(names)}; make one report for each.")
    scored = list(dict.fromkeys(record["spec"].get("scored", "everybody") for record in records))
    require(
        len(scored) == 1,
        f"A report is about the same clients, got scores of {' and of '.join(scored)}; make one for each.",
    )
    _refuse_other_data(records)


def _refuse_other_data(records: Sequence[Record]) -> None:
    """Runs can be told apart client by client if those of one seed had the same clients with the same examples."""
    first: dict[Any, Record] = {}
    for record in records:
        known = first.setdefault(seed_of(record), record)
        apart = _differing_data(known, record)
        require(
            not apart,
            f"Runs of a report must have the same clients, but with seed {seed_of(record)} '{known['name']}' and "
            f"'{record['name']}' differ in {apart}; make one report for each.",
        )


def _differing_data(one: Record, other: Record) -> str:
    """In which options the data differ, in words; nothing if they are the same."""
    sums = [record.get("shared", {}).get("data") for record in (one, other)]
    same = sums[0] == sums[1] or None in sums  # records from before say only what was asked for
    if same and None not in sums:
        return ""
    options = [dict(flat(record["spec"].get("data_options", {}))) for record in (one, other)]
    named = [key for key in {**options[0], **options[1]} if options[0].get(key) != options[1].get(key)]
    sides = [", ".join(f"{key}={option.get(key)}" for key in named) for option in options]
    return " and ".join(sides) if named else "" if same else "their data"


def _label(record: Record, groups: list[list[Record]], records: Sequence[Record]) -> str:
    """The method's name, with the options in which it differs from others of its name."""
    name: str = record["name"]
    own = _options(record, records)
    others = [_options(runs[0], records) for runs in groups if runs[0]["name"] == name]
    differing = [key for key in own if any(other.get(key) != own[key] for other in others)]
    options = ", ".join(f"{key.removeprefix('hyper.')}={own[key]}" for key in differing)
    return f"{name} ({options})" if options else name


def _options(record: Record, records: Sequence[Record]) -> dict[str, Any]:
    """What a run was asked for, as far as all records of its name say it: older ones know fewer options."""
    known = [{key for key, _ in flat(each["spec"])} for each in records if each["name"] == record["name"]]
    common = set.intersection(*known) - set(SEEDS_AND_PLACES)
    return {key: value for key, value in flat(record["spec"]) if key in common}


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings with dotted keys."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
