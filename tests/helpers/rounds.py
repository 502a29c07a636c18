"""Rounds of runs that never happened."""

from collections.abc import Mapping

from fedtailor.training.record.schema import RoundEntry, Work

GroupFigures = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""Figures by group, stage and name."""


def make_round(number: int, scores: GroupFigures | None = None, **work: float) -> RoundEntry:
    """Return a round with these scores, which cost nothing but what `work` says."""
    costs = dict.fromkeys(Work.model_fields, 0.0) | work
    return RoundEntry.model_validate({"round": number, "scores": scores, **costs})
