"""The sentences of the report: what was compared, how far it has come, and what to know about it."""

from collections.abc import Iterable, Sequence
from typing import Any

from fedtailor.reporting.html.figures import compute_run_cost
from fedtailor.reporting.html.grouping import Record, ReportLine, get_seed, list_runs

MAX_NAMES = 4
GROUP_NAMES = {
    "participating": "participating clients",
    "unseen": "unseen clients",
    "validation": "validation clients",
}


def join_words(words: Iterable[Any]) -> str:
    """One, two and three."""
    texts = [str(word) for word in words]
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1]))) if texts else ""


def format_count(count: int, noun: str) -> str:
    """1 round, 2 rounds."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def make_title(lines: Sequence[ReportLine]) -> str:
    """What was compared on what."""
    names = (
        join_words(line.label for line in lines)
        if len(lines) <= MAX_NAMES
        else f"{len(lines)} methods"
    )
    return f"{names} on {lines[0].runs[0]['data']['name']}"


def make_summary(lines: Sequence[ReportLine]) -> str:
    """Data, clients, rounds, cohort and seeds in a sentence."""
    data = lines[0].runs[0]["data"]
    num_participating, num_unseen = (
        len(data["groups"].get(group, ())) for group in ("participating", "unseen")
    )
    clients_text = f"{format_count(num_participating, 'client')} who took part in training"
    if num_unseen:
        clients_text += (
            f" and {num_unseen:,} new {'one' if num_unseen == 1 else 'ones'} who did not"
        )
    parts = [clients_text, f"{format_count(data['server_examples'], 'example')} held by the server"]
    configs = [run["config"] for _, run in list_runs(lines)]
    parts += [
        f"{_format_span(found)} rounds" for found in [_collect_integers(configs, "rounds")] if found
    ]
    parts += [
        f"{_format_span(found)} clients a round"
        for found in [_collect_integers(configs, "cohort")]
        if found
    ]
    seeds = list(
        dict.fromkeys(
            str(get_seed(run)) for _, run in list_runs(lines) if get_seed(run) is not None
        )
    )
    parts += [f"{'seed' if len(seeds) == 1 else 'seeds'} {join_words(seeds)}"] if seeds else []
    return "; ".join(parts) + "."


def describe_status(lines: Sequence[ReportLine]) -> tuple[str, str]:
    """(kind, sentence): finished, running or interrupted, and which runs are not finished."""
    runs = list_runs(lines)
    unfinished = [(line, run) for line, run in runs if run["status"] != "finished"]
    if not unfinished:
        return "finished", "Finished" if len(runs) == 1 else f"All {len(runs)} runs finished"
    kind = "running" if any(run["status"] == "running" for _, run in unfinished) else "interrupted"
    progress = _describe_progress(unfinished[0][1])
    if len(runs) == 1:
        return (
            kind,
            f"{'In progress' if kind == 'running' else 'Interrupted'}: {progress} so far, no final scores yet",
        )
    first = f"{unfinished[0][0].label}{_format_seed(unfinished[0][1])} {unfinished[0][1]['status']}, {progress}"
    others = f", and {len(unfinished) - 1} more" if len(unfinished) > 1 else ""
    num_finished = len(runs) - len(unfinished)
    return (
        kind,
        f"{num_finished} of {len(runs)} runs finished; {first}{others}; final scores are of finished runs",
    )


def collect_notes(lines: Sequence[ReportLine]) -> list[str]:
    """What the runs noted, each note once, with the lines it is about; declared overlap; untested clients."""
    labels_by_note: dict[str, list[str]] = {}
    for line, run in list_runs(lines):
        for note in (
            *(run["choices"].get("notes") or ()),
            *_list_data_notes(run),
            *_list_untested_notes(run),
        ):
            labels_by_note.setdefault(note, []).append(line.label)
    return [
        _prefix_labels(note, list(dict.fromkeys(labels)), len(lines))
        for note, labels in labels_by_note.items()
    ] + _list_repeated_seeds(lines)


def describe_sampling(lines: Sequence[ReportLine]) -> str:
    """Say so where scores in rounds are of fewer clients than the final ones."""
    for _, run in list_runs(lines):
        sizes = [len(group) for group in run["data"]["groups"].values()]
        num_eval, num_final_eval = (
            run["config"].get(key) or max(sizes) for key in ("eval_clients", "final_eval_clients")
        )
        end = f"{num_final_eval:,}" if num_final_eval < max(sizes) else "all of them"
        if min(num_eval, num_final_eval) < max(sizes):
            return (
                f"In rounds, {num_eval:,} clients of a larger group are scored; in the end, {end}."
            )
    return ""


def describe_run_state(run: Record) -> str:
    """How far a run has come, in a few words."""
    return f"{run['status']}, {_describe_progress(run)}, {compute_run_cost(run)['seconds']:,.1f} s"


def _describe_progress(run: Record) -> str:
    rounds_done, num_rounds = len(run["rounds"]), run["config"].get("rounds")
    return (
        format_count(rounds_done, "round")
        if num_rounds in (None, rounds_done)
        else f"{rounds_done:,} of {num_rounds:,} rounds"
    )


def _format_seed(run: Record) -> str:
    return "" if get_seed(run) is None else f", seed {get_seed(run)},"


def _list_data_notes(run: Record) -> list[str]:
    overlap = run["data"]["overlap"]
    return [f"The server's data overlaps the clients', as declared: {overlap}"] if overlap else []


def _list_untested_notes(run: Record) -> list[str]:
    """Clients without test examples, and those of whom a model has diverged: their figures are not there."""
    found = []
    for group, scores in (run["scores"] or {}).items():
        num_missing = sum(weight == 0 for weight in scores["weights"])
        num_infinite = _count_infinite(scores)
        if num_missing:
            found.append(
                f"{format_count(num_missing, f'{group} client')} without test examples left out of the figures."
            )
        if num_infinite:
            found.append(
                f"The loss of {format_count(num_infinite, f'{group} client')} is not finite: training has diverged."
            )
    return found


def has_diverged(line: ReportLine) -> bool:
    """Whether the loss of anybody who could be tested is not finite."""
    return any(
        _count_infinite(scores) for run in line.runs for scores in (run["scores"] or {}).values()
    )


def _count_infinite(scores: Record) -> int:
    """Clients with test examples, but without a loss."""
    losses = zip(scores["before"]["loss"], scores["after"]["loss"], scores["weights"], strict=True)
    return sum(weight > 0 and (before is None or after is None) for before, after, weight in losses)


def _list_repeated_seeds(lines: Sequence[ReportLine]) -> list[str]:
    seeds = [(line.label, [str(get_seed(run)) for run in line.runs]) for line in lines]
    return [
        f"{label}: seed {seed} was given {found.count(seed)} times."
        for label, found in seeds
        for seed in dict.fromkeys(found)
        if found.count(seed) > 1
    ]


def _prefix_labels(note: str, labels: list[str], num_lines: int) -> str:
    return note if len(labels) == num_lines else f"{join_words(labels)}: {note}"


def _collect_integers(configs: list[Any], key: str) -> list[int]:
    return sorted({config[key] for config in configs if isinstance(config.get(key), int)})


def _format_span(values: list[int]) -> str:
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"
