"""The sentences of the report: what was compared, how far it has come, and what to know about it."""

from collections.abc import Iterable, Sequence
from typing import Any

from fedtailor.run.report.figures import cost_of
from fedtailor.run.report.grouping import Line, Record, runs_of, seed_of

MOST_NAMES = 4
PEOPLE = {"local": "clients who took part", "new": "new clients", "validation": "validation clients"}


def listed(words: Iterable[Any]) -> str:
    """One, two and three."""
    texts = [str(word) for word in words]
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1]))) if texts else ""


def counted(number: int, noun: str) -> str:
    """1 round, 2 rounds."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def title(lines: Sequence[Line]) -> str:
    """What was compared on what."""
    names = listed(line.label for line in lines) if len(lines) <= MOST_NAMES else f"{len(lines)} methods"
    return f"{names} on {lines[0].runs[0]['data']['name']}"


def summary(lines: Sequence[Line]) -> str:
    """Data, clients, rounds, cohort and seeds in a sentence."""
    data = lines[0].runs[0]["data"]
    local, new = (len(data["groups"].get(group, ())) for group in ("local", "new"))
    people = f"{counted(local, 'client')} who took part in training"
    if new:
        people += f" and {new:,} new {'one' if new == 1 else 'ones'} who did not"
    parts = [people, f"{counted(data['server_examples'], 'example')} held by the server"]
    specs = [run["spec"] for _, run in runs_of(lines)]
    parts += [f"{_span(found)} rounds" for found in [_numbers(specs, "rounds")] if found]
    parts += [f"{_span(found)} clients a round" for found in [_numbers(specs, "cohort")] if found]
    seeds = list(dict.fromkeys(str(seed_of(run)) for _, run in runs_of(lines) if seed_of(run) is not None))
    parts += [f"{'seed' if len(seeds) == 1 else 'seeds'} {listed(seeds)}"] if seeds else []
    return "; ".join(parts) + "."


def status(lines: Sequence[Line]) -> tuple[str, str]:
    """(kind, sentence): finished, running or interrupted, and which runs are not finished."""
    runs = runs_of(lines)
    left = [(line, run) for line, run in runs if run["status"] != "finished"]
    if not left:
        return "finished", "Finished" if len(runs) == 1 else f"All {len(runs)} runs finished"
    kind = "running" if any(run["status"] == "running" for _, run in left) else "interrupted"
    progress = _progress(left[0][1])
    if len(runs) == 1:
        return kind, f"{'In progress' if kind == 'running' else 'Interrupted'}: {progress} so far, no final scores yet"
    first = f"{left[0][0].label}{_seed(left[0][1])} {left[0][1]['status']}, {progress}"
    others = f", and {len(left) - 1} more" if len(left) > 1 else ""
    return (
        kind,
        f"{len(runs) - len(left)} of {len(runs)} runs finished; {first}{others}; final scores are of finished runs",
    )


def notes(lines: Sequence[Line]) -> list[str]:
    """What the runs noted, each note once, with the lines it is about; declared overlap; untested clients."""
    who: dict[str, list[str]] = {}
    for line, run in runs_of(lines):
        for note in (*(run["choices"].get("notes") or ()), *_about_data(run), *_untested(run)):
            who.setdefault(note, []).append(line.label)
    return [_with_lines(note, list(dict.fromkeys(labels)), len(lines)) for note, labels in who.items()] + _twice(lines)


def watched(lines: Sequence[Line]) -> str:
    """Say so where scores in rounds are of fewer clients than the final ones."""
    for _, run in runs_of(lines):
        sizes = [len(group) for group in run["data"]["groups"].values()]
        watched, scored = (run["spec"].get(key) or max(sizes) for key in ("watch", "score"))
        end = f"{scored:,}" if scored < max(sizes) else "all of them"
        if min(watched, scored) < max(sizes):
            return f"In rounds, {watched:,} clients of a larger group are scored; in the end, {end}."
    return ""


def run_state(run: Record) -> str:
    """How far a run has come, in a few words."""
    return f"{run['status']}, {_progress(run)}, {cost_of(run)['seconds']:,.1f} s"


def _progress(run: Record) -> str:
    done, of = len(run["rounds"]), run["spec"].get("rounds")
    return counted(done, "round") if of in (None, done) else f"{done:,} of {of:,} rounds"


def _seed(run: Record) -> str:
    return "" if seed_of(run) is None else f", seed {seed_of(run)},"


def _about_data(run: Record) -> list[str]:
    overlap = run["data"]["overlap"]
    return [f"The server's data overlaps the clients', as declared: {overlap}"] if overlap else []


def _untested(run: Record) -> list[str]:
    """Clients without test examples, and those of whom a model has diverged: their figures are not there."""
    found = []
    for group, scores in (run["scores"] or {}).items():
        missing = sum(weight == 0 for weight in scores["weights"])
        infinite = _infinite(scores)
        if missing:
            found.append(f"{counted(missing, f'{group} client')} without test examples left out of the figures.")
        if infinite:
            found.append(f"The loss of {counted(infinite, f'{group} client')} is not finite: training has diverged.")
    return found


def diverged(line: Line) -> bool:
    """Whether the loss of anybody who could be tested is not finite."""
    return any(_infinite(scores) for run in line.runs for scores in (run["scores"] or {}).values())


def _infinite(scores: Record) -> int:
    """Clients with test examples, but without a loss."""
    losses = zip(scores["before"]["loss"], scores["after"]["loss"], scores["weights"], strict=True)
    return sum(weight > 0 and (before is None or after is None) for before, after, weight in losses)


def _twice(lines: Sequence[Line]) -> list[str]:
    seeds = [(line.label, [str(seed_of(run)) for run in line.runs]) for line in lines]
    return [
        f"{label}: seed {seed} was given {found.count(seed)} times."
        for label, found in seeds
        for seed in dict.fromkeys(found)
        if found.count(seed) > 1
    ]


def _with_lines(note: str, labels: list[str], of: int) -> str:
    return note if len(labels) == of else f"{listed(labels)}: {note}"


def _numbers(specs: list[Any], key: str) -> list[int]:
    return sorted({spec[key] for spec in specs if isinstance(spec.get(key), int)})


def _span(values: list[int]) -> str:
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"
