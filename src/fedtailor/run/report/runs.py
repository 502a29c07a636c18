"""How to repeat each run: its command, specification, choices and versions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedtailor.run.report.grouping import Line, Record, runs_of, seed_of
from fedtailor.run.report.pieces import swatch, text
from fedtailor.run.report.wording import counted, run_state

MOST_OPEN = 3  # runs whose commands are seen without unfolding


def repeat(lines: Sequence[Line]) -> str:
    """Every run with its command and, folded, everything else that is known about it; of many runs all is folded."""
    few = len(runs_of(lines)) <= MOST_OPEN
    return "".join(_line(number, line, few) for number, line in enumerate(lines))


def made_with(lines: Sequence[Line]) -> str:
    """Versions, commits and machines that all runs share, in a line; those that differ are named so."""
    found: dict[str, list[str]] = {}
    for _, run in runs_of(lines):
        for name, version in _made(run).items():
            found.setdefault(name, []).append(str(version))
    return " · ".join(f"{name} {_one_of(versions)}" for name, versions in found.items())


def _made(run: Record) -> dict[str, str]:
    """What a run was made with, and on; records of old do not say on what."""
    return {**run["versions"], "commit": run["commit"] or "unknown", "machine": run.get("machine", "unknown")}


def _one_of(versions: list[str]) -> str:
    different = list(dict.fromkeys(versions))
    return different[0] if len(different) == 1 else " / ".join(different)


def _line(number: int, line: Line, is_open: bool) -> str:
    runs = "".join(_run(run) for run in line.runs)
    heading = f"<h3>{swatch(number)}{text(line.label)}</h3> {counted(len(line.runs), 'run')}"
    return f'<details class="repeat"{" open" if is_open else ""}><summary>{heading}</summary>{runs}</details>'


def _run(run: Record) -> str:
    seed = "" if seed_of(run) is None else f"seed {seed_of(run)}: "
    parts = {"choices": run["choices"], "versions": _made(run)}
    facts = "".join(f"<div><h4>{name}</h4>{_facts(values)}</div>" for name, values in parts.items())
    spec = json.dumps(run["spec"], indent=2, ensure_ascii=False, default=str)
    return (
        f'<div class="run"><div class="command"><code>{text(run["command"])}</code>'
        f'<button type="button" class="copy" aria-label="Copy the command: {text(run["command"])}">Copy</button></div>'
        f"<details><summary>{text(seed + run_state(run))}</summary>"
        f'<div class="facts"><div><h4>specification</h4><pre>{text(spec)}</pre></div>{facts}</div></details></div>'
    )


def _facts(values: Mapping[str, Any]) -> str:
    rows = "".join(f"<dt>{text(name)}</dt><dd>{_fact(value)}</dd>" for name, value in values.items())
    return f"<dl>{rows}</dl>"


def _fact(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "<br>".join(text(each) for each in value) or "none"
    return "none" if value is None else text(json.dumps(value) if isinstance(value, bool) else value)
