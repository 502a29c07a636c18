"""Scores of groups of clients, before and after personalizing."""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from fedtailor import prng
from fedtailor.core.types import Routine, ServerState
from fedtailor.engines.base import Engine, ScoreResult
from fedtailor.engines.context import EngineContext
from fedtailor.evaluation.client_statistics import Scores, compute_ratios
from fedtailor.evaluation.per_class import add_class_metrics, compute_f1, is_class_metric
from fedtailor.prng.streams import GROUP_STREAMS, Stream

TEST_GROUPS = ("participating", "unseen")
PERSONALIZE_PASSES = (1, 5)
"""After how many passes of personalizing clients are scored in the end, besides after all of it."""


class FinalScores(NamedTuple):
    """A group's final scores, also after a few passes of personalizing, and the F1 over its classes, if it has any."""

    scores: Scores
    after_passes: dict[str, dict[str, np.ndarray]]
    f1: dict[str, float]  # before, after, and after those passes


def evaluate(
    context: EngineContext,
    engine: Engine,
    state: ServerState,
    groups: tuple[str, ...] = TEST_GROUPS,
    max_clients: int | None = None,
) -> dict[str, Scores]:
    """Personalizes and scores the clients of the groups, at most so many of each; an empty group is left out."""
    return {
        group: score_clients(context, engine, state, sample_group(context, group, max_clients))
        for group in groups
        if len(context.data.groups[group])
    }


def evaluate_final(
    context: EngineContext,
    engine: Engine,
    state: ServerState,
    groups: tuple[str, ...] = TEST_GROUPS,
    max_clients: int | None = None,
) -> dict[str, FinalScores]:
    """The same, also after 1 and after 5 passes of personalizing, and with figures over classes."""
    class_engine = add_class_metrics(context, engine)
    return {
        group: _score_final(context, class_engine, state, sample_group(context, group, max_clients))
        for group in groups
        if len(context.data.groups[group])
    }


def sample_group(context: EngineContext, group: str, max_clients: int | None) -> np.ndarray:
    """Everybody of a group, or as many as are looked at, always the same ones."""
    client_ids = context.data.groups[group]
    if max_clients is None or max_clients >= len(client_ids):
        return client_ids
    positions = (
        prng.choice(
            prng.key(context.seed, Stream.EVAL_CLIENTS, GROUP_STREAMS[group]),
            len(client_ids),
            max_clients,
        )
        .sort()
        .values.numpy()
    )
    sampled: np.ndarray = client_ids[positions]
    return sampled


def score_clients(
    context: EngineContext, engine: Engine, state: ServerState, client_ids: np.ndarray
) -> Scores:
    """Personalizes and scores some clients."""
    return _to_scores(context, engine.score(state, client_ids), client_ids)


def truncate_routine(routine: Routine, num_passes: int) -> Routine:
    """Personalizing that ends after so many passes, or so many steps where it is counted in these."""
    phases = (
        phase._replace(
            plan=phase.plan._replace(steps=num_passes)
            if phase.plan.steps
            else phase.plan._replace(epochs=num_passes)
        )
        for phase in routine.phases
    )
    return routine._replace(phases=tuple(phases))


def _score_final(
    context: EngineContext, engine: Engine, state: ServerState, client_ids: np.ndarray
) -> FinalScores:
    result, personalize = engine.score(state, client_ids), context.method.personalize
    sums_by_stage = {"before": result.before, "after": result.after}
    for num_passes in PERSONALIZE_PASSES if personalize.phases else ():
        truncated = truncate_routine(personalize, num_passes)
        is_same_plan = [phase.plan for phase in truncated.phases] == [
            phase.plan for phase in personalize.phases
        ]
        sums_by_stage[str(num_passes)] = (
            result.after if is_same_plan else engine.score(state, client_ids, truncated).after
        )
    after_passes = {
        stage: _compute_metric_ratios(figures)
        for stage, figures in sums_by_stage.items()
        if stage not in ("before", "after")
    }
    f1 = {
        stage: value
        for stage, figures in sums_by_stage.items()
        if (value := compute_f1(figures)) is not None
    }
    return FinalScores(_to_scores(context, result, client_ids), after_passes, f1)


def _to_scores(context: EngineContext, result: ScoreResult, client_ids: np.ndarray) -> Scores:
    return Scores(
        ids=context.data.client_names[client_ids],
        before=_compute_metric_ratios(result.before),
        after=_compute_metric_ratios(result.after),
        weights={
            name: sums[:, 1].numpy()
            for name, sums in result.after.items()
            if not is_class_metric(name)
        },
    )


def _compute_metric_ratios(sums_by_metric: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {
        name: compute_ratios(sums)
        for name, sums in sums_by_metric.items()
        if not is_class_metric(name)
    }
