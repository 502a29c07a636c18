"""Describe how to repeat each run: its command, specification, choices and versions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedtailor.reporting.html.grouping import Record, ReportLine, get_seed, list_runs
from fedtailor.reporting.html.wording import describe_run_state

NONE = ["none"]

Facts = dict[str, list[str]]  # name -> values


class Run(NamedTuple):
    """Say how a run is repeated, and what is known about it."""

    command: str
    state: str
    spec: str
    choices: Facts
    versions: Facts


def describe_runs(line: ReportLine) -> list[Run]:
    """Return how each run of a line is repeated."""
    return [_describe(run) for run in line.runs]


def describe_versions(lines: Sequence[ReportLine]) -> str:
    """Name versions, commits and machines of all runs in a line; where they differ, each."""
    found: dict[str, list[str]] = {}
    for _, run in list_runs(lines):
        for name, version in _get_environment(run).items():
            found.setdefault(name, []).append(str(version))
    return " · ".join(f"{name} {_join_distinct(versions)}" for name, versions in found.items())


def _get_environment(run: Record) -> dict[str, str]:
    """Return what a run was made with, and on; records of old do not say on what."""
    commit = run["commit"] or "unknown"
    return {**run["versions"], "commit": commit, "machine": run.get("machine", "unknown")}


def _join_distinct(versions: list[str]) -> str:
    different = list(dict.fromkeys(versions))
    return different[0] if len(different) == 1 else " / ".join(different)


def _describe(run: Record) -> Run:
    seed = "" if get_seed(run) is None else f"seed {get_seed(run)}: "
    return Run(
        command=run["command"],
        state=seed + describe_run_state(run),
        spec=json.dumps(run["config"], indent=2, ensure_ascii=False, default=str),
        choices=_write_facts(run["choices"]),
        versions=_write_facts(_get_environment(run)),
    )


def _write_facts(values: Mapping[str, Any]) -> Facts:
    return {name: _write(value) for name, value in values.items()}


def _write(value: Any) -> list[str]:
    if isinstance(value, (list, tuple)):
        return [str(each) for each in value] or NONE
    if value is None:
        return NONE
    return [json.dumps(value) if isinstance(value, bool) else str(value)]
