"""Where the time of runs went, in words."""

from collections.abc import Sequence

from fedtailor.training.record.schema import RunRecord, Times

NAMES = {
    "training": "training",
    "evaluation": "evaluation",
    "personalizing": "personalizing for it",
    "compiling": "compiling",
    "data": "data",
    "saving": "saving",
    "rest": "rest",
}
"""What the parts of `Times` are called, in the order in which they are shown."""
MIN_SECONDS = 1.0
"""Evaluation is not remarked upon if it took less."""


def describe_times(records: Sequence[RunRecord]) -> list[str]:
    """Return what the runs took in all and for what, and a remark if most of it is evaluation."""
    times = sum_times(records)
    if times is None:
        return []
    parts = [f"{name} {getattr(times, key):.1f}" for key, name in NAMES.items()]
    runs = "The run" if len(records) == 1 else f"All {len(records)} runs"
    lines = [f"{runs} took {times.total:.1f} s: {', '.join(parts)}."]
    evaluation = times.evaluation + times.personalizing
    if evaluation > max(times.training, MIN_SECONDS):
        lines.append(
            f"Evaluation with its personalizing took {evaluation:.1f} s, training "
            f"{times.training:.1f} s: a larger evaluate_every, or a smaller eval_clients or "
            "final_eval_clients, lessens that."
        )
    return lines


def sum_times(records: Sequence[RunRecord]) -> Times | None:
    """Return the seconds of runs together, or None if none has them."""
    all_times = [record.times for record in records if record.times is not None]
    if not all_times:
        return None
    total = Times()
    for times in all_times:
        total = total.add(times.model_dump())
    return total
