"""How to repeat each run: its command, configuration, choices and versions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedtailor.reporting.html.grouping import ReportLine, list_runs
from fedtailor.reporting.html.wording import describe_run_state
from fedtailor.training.record.schema import RunRecord

NONE = ["none"]

Facts = dict[str, list[str]]
"""Values as text by the name of the fact."""


class RunDescription(NamedTuple):
    """The texts about a run; `config` is JSON."""

    command: str
    state: str
    config: str
    choices: Facts
    versions: Facts


def describe_runs(line: ReportLine) -> list[RunDescription]:
    """Return how each run of a line is repeated."""
    return [_describe_run(run) for run in line.runs]


def _describe_run(run: RunRecord) -> RunDescription:
    config = run.config.model_dump(mode="json")
    return RunDescription(
        command=run.command,
        state=f"seed {run.config.seed}: {describe_run_state(run)}",
        config=json.dumps(config, indent=2, ensure_ascii=False),
        choices=_format_facts(run.choices.model_dump()),
        versions=_format_facts(_get_environment(run)),
    )


def describe_versions(lines: Sequence[ReportLine]) -> str:
    """Return versions, commit and machine of all runs in one line; all values where they differ."""
    values_by_name: dict[str, list[str]] = {}
    for _, run in list_runs(lines):
        for name, value in _get_environment(run).items():
            values = values_by_name.setdefault(name, [])
            if value not in values:
                values.append(value)
    return " · ".join(f"{name} {' / '.join(values)}" for name, values in values_by_name.items())


def _get_environment(run: RunRecord) -> dict[str, str]:
    return {**run.versions, "commit": run.commit or "unknown", "machine": run.machine}


def _format_facts(values: Mapping[str, Any]) -> Facts:
    return {name: _format_value(value) for name, value in values.items()}


def _format_value(value: Any) -> list[str]:
    """Return a value as lines of text."""
    if value is None:
        return NONE
    if isinstance(value, (list, tuple)):
        return [str(item) for item in value] or NONE
    if isinstance(value, bool):
        return [json.dumps(value)]
    return [str(value)]
