"""Describe how to repeat each run: its command, specification, choices and versions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedtailor.run.report.grouping import Line, Record, runs_of, seed_of
from fedtailor.run.report.wording import run_state

NONE = ["none"]

Facts = dict[str, list[str]]  # name -> values


class Run(NamedTuple):
    """Say how a run is repeated, and what is known about it."""

    command: str
    state: str
    spec: str
    choices: Facts
    versions: Facts


def describe_runs(line: Line) -> list[Run]:
    """Return how each run of a line is repeated."""
    return [_describe(run) for run in line.runs]


def describe_versions(lines: Sequence[Line]) -> str:
    """Name versions, commits and machines of all runs in a line; where they differ, each."""
    found: dict[str, list[str]] = {}
    for _, run in runs_of(lines):
        for name, version in _made(run).items():
            found.setdefault(name, []).append(str(version))
    return " · ".join(f"{name} {_one_of(versions)}" for name, versions in found.items())


def _made(run: Record) -> dict[str, str]:
    """Return what a run was made with, and on; records of old do not say on what."""
    commit = run["commit"] or "unknown"
    return {**run["versions"], "commit": commit, "machine": run.get("machine", "unknown")}


def _one_of(versions: list[str]) -> str:
    different = list(dict.fromkeys(versions))
    return different[0] if len(different) == 1 else " / ".join(different)


def _describe(run: Record) -> Run:
    seed = "" if seed_of(run) is None else f"seed {seed_of(run)}: "
    return Run(
        command=run["command"],
        state=seed + run_state(run),
        spec=json.dumps(run["spec"], indent=2, ensure_ascii=False, default=str),
        choices=_write_facts(run["choices"]),
        versions=_write_facts(_made(run)),
    )


def _write_facts(values: Mapping[str, Any]) -> Facts:
    return {name: _write(value) for name, value in values.items()}


def _write(value: Any) -> list[str]:
    if isinstance(value, (list, tuple)):
        return [str(each) for each in value] or NONE
    if value is None:
        return NONE
    return [json.dumps(value) if isinstance(value, bool) else str(value)]
