"""The sentences of the report: what was compared, how far it is, and what to know about it."""

from collections.abc import Iterable, Iterator, Sequence

from fedtailor.data.row_counts import OVERLAP_NOTE
from fedtailor.errors import join_items
from fedtailor.reporting.html.figures import compute_run_cost
from fedtailor.reporting.html.grouping import ReportLine, list_runs
from fedtailor.training.record.schema import GroupScores, RunRecord
from fedtailor.training.record.summary import describe_early_stops

MAX_NAMES = 4
"""The title names this many methods, and counts more of them."""
GROUP_NAMES = {
    "participating": "participating clients",
    "unseen": "unseen clients",
    "validation": "validation clients",
}
UNFINISHED_STATUS_LABELS = {
    "running": "In progress",
    "interrupted": "Interrupted",
    "diverged": "Diverged",
}


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun, as in "1 round" and "2 rounds"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def make_title(lines: Sequence[ReportLine]) -> str:
    """Return the methods and the data set."""
    methods = f"{len(lines)} methods"
    if len(lines) <= MAX_NAMES:
        methods = join_items(line.label for line in lines)
    return f"{methods} on {lines[0].runs[0].data.name}"


def make_summary(lines: Sequence[ReportLine]) -> str:
    """Return clients, server data, rounds, cohort and seeds in a sentence."""
    runs = [run for _, run in list_runs(lines)]
    data = runs[0].data
    num_unseen = len(data.groups["unseen"])
    clients = format_count(len(data.groups["participating"]), "participating client")
    if num_unseen:
        clients += f" and {format_count(num_unseen, 'unseen client')}"
    seeds = list(dict.fromkeys(run.config.seed for run in runs))
    parts = [
        clients,
        f"{format_count(data.server_examples, 'example')} held by the server",
        f"{_format_range(run.num_rounds for run in runs)} rounds{describe_early_stops(runs)}",
        f"{_format_range(run.config.cohort for run in runs)} clients per round",
        f"{'seed' if len(seeds) == 1 else 'seeds'} {join_items(seeds)}",
    ]
    return "; ".join(parts) + "."


def _format_range(values: Iterable[int]) -> str:
    distinct = sorted(set(values))
    if len(distinct) == 1:
        return f"{distinct[0]:,}"
    return f"{distinct[0]:,} to {distinct[-1]:,}"


def describe_status(lines: Sequence[ReportLine]) -> tuple[str, str]:
    """Return the status of all runs together, and a sentence about those that are not finished."""
    runs = list_runs(lines)
    unfinished = [(line, run) for line, run in runs if run.status != "finished"]
    if not unfinished and len(runs) == 1:
        return "finished", "Finished"
    if not unfinished:
        return "finished", f"All {len(runs)} runs finished"
    line, first = unfinished[0]
    progress = _describe_progress(first)
    if len(runs) == 1:
        label = UNFINISHED_STATUS_LABELS[first.status]
        return first.status, f"{label}: {progress} so far, no final scores yet"
    is_running = any(run.status == "running" for _, run in unfinished)
    others = f", and {len(unfinished) - 1} more" if len(unfinished) > 1 else ""
    sentence = (
        f"{len(runs) - len(unfinished)} of {len(runs)} runs finished; "
        f"{line.label}, seed {first.config.seed}, {first.status}, {progress}{others}; "
        "final scores are of finished runs"
    )
    return "running" if is_running else "interrupted", sentence


def describe_run_state(run: RunRecord) -> str:
    """Return status, progress and time of a run, as in "finished, 10 rounds, 2.5 s"."""
    seconds = compute_run_cost(run)["seconds"]
    return f"{run.status}, {_describe_progress(run)}, {seconds:,.1f} s"


def _describe_progress(run: RunRecord) -> str:
    rounds_done = len(run.rounds)
    if run.stopped_early_after is not None:
        return f"stopped early after {rounds_done:,} of {run.config.rounds:,} rounds"
    if rounds_done == run.config.rounds:
        return format_count(rounds_done, "round")
    return f"{rounds_done:,} of {run.config.rounds:,} rounds"


def describe_sampling(lines: Sequence[ReportLine]) -> str:
    """Return a sentence about evaluations of a part of the clients; "" if all are evaluated."""
    for _, run in list_runs(lines):
        largest_group = max(len(clients) for clients in run.data.groups.values())
        num_eval = run.config.eval_clients
        num_final_eval = run.config.final_eval_clients or largest_group
        if min(num_eval, num_final_eval) < largest_group:
            at_end = f"{num_final_eval:,}" if num_final_eval < largest_group else "all of them"
            return (
                f"After rounds, {num_eval:,} clients of a larger group are evaluated; "
                f"at the end, {at_end}."
            )
    return ""


def collect_notes(lines: Sequence[ReportLine]) -> list[str]:
    """Return each note once, with the labels of the lines that it is about, unless it is of all."""
    labels_by_note: dict[str, list[str]] = {}
    for line, run in list_runs(lines):
        for note in _list_run_notes(run):
            labels = labels_by_note.setdefault(note, [])
            if line.label not in labels:
                labels.append(line.label)
    notes = []
    for note, labels in labels_by_note.items():
        is_of_all = len(labels) == len(lines)
        notes.append(note if is_of_all else f"{join_items(labels)}: {note}")
    return [*notes, *_list_repeated_seeds(lines)]


def _list_run_notes(run: RunRecord) -> Iterator[str]:
    """Yield a run's own notes, declared overlap, and clients without scores."""
    yield from run.choices.notes
    if run.data.overlap:
        yield OVERLAP_NOTE
    for group, scores in (run.scores or {}).items():
        num_untested = sum(weight == 0 for weight in scores.weights)
        if num_untested:
            clients = format_count(num_untested, f"{group} client")
            yield f"{clients} without test examples left out of the figures."
        num_infinite = _count_infinite_losses(scores)
        if num_infinite:
            clients = format_count(num_infinite, f"{group} client")
            yield f"The loss of {clients} is not finite: training has diverged."


def has_diverged(line: ReportLine) -> bool:
    """Return whether the loss of any client with test examples is not finite."""
    return any(
        _count_infinite_losses(scores)
        for run in line.runs
        for scores in (run.scores or {}).values()
    )


def _count_infinite_losses(scores: GroupScores) -> int:
    """Return the number of clients with test examples, but without a loss."""
    count = 0
    losses = zip(scores.before["loss"], scores.after["loss"], scores.weights, strict=True)
    for before, after, weight in losses:
        is_tested = weight is not None and weight > 0
        if is_tested and (before is None or after is None):
            count += 1
    return count


def _list_repeated_seeds(lines: Sequence[ReportLine]) -> Iterator[str]:
    for line in lines:
        seeds = [run.config.seed for run in line.runs]
        for seed in dict.fromkeys(seeds):
            if seeds.count(seed) > 1:
                yield f"{line.label}: seed {seed} was given {seeds.count(seed)} times."
