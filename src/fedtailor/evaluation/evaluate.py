"""Scores of groups of clients, before and after personalization."""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from fedtailor import prng
from fedtailor.core.types import BatchPlan, Phase, Routine, ServerState
from fedtailor.engines.base import Engine, ScoreResult
from fedtailor.engines.context import EngineContext
from fedtailor.evaluation.client_statistics import Scores, compute_ratios
from fedtailor.evaluation.per_class import add_class_metrics, compute_f1, is_class_metric
from fedtailor.prng.streams import GroupStream, Stream

TEST_GROUPS = ("participating", "unseen")
"""Groups whose scores are reported: clients that train, and clients that never do."""
PERSONALIZE_PASSES = (1, 5)
"""Epochs of personalization after which the final evaluation also scores clients."""


class FinalScores(NamedTuple):
    """Final scores of a group of clients, also after a few passes of personalization."""

    scores: Scores
    after_passes: dict[str, dict[str, np.ndarray]]  # by number of passes, then by metric: [clients]
    f1: dict[str, float]  # macro F1 by "before", "after" and number of passes; empty: no classes


def evaluate(
    context: EngineContext,
    engine: Engine,
    state: ServerState,
    groups: tuple[str, ...] = TEST_GROUPS,
    max_clients: int | None = None,
) -> dict[str, Scores]:
    """Personalize and score the clients of each group that has any.

    Args:
        context: The run.
        engine: Engine that scores the clients.
        state: Server state whose model is scored.
        groups: Names of groups of clients.
        max_clients: Maximum number of clients of a group; see `sample_group`.
    """
    scores = {}
    for group in groups:
        if len(context.data.groups[group]):
            client_ids = sample_group(context, group, max_clients)
            scores[group] = score_clients(context, engine, state, client_ids)
    return scores


def evaluate_final(
    context: EngineContext,
    engine: Engine,
    state: ServerState,
    groups: tuple[str, ...] = TEST_GROUPS,
    max_clients: int | None = None,
) -> dict[str, FinalScores]:
    """Evaluate as `evaluate` does, also after a few passes of personalization, and with F1.

    Args:
        context: The run.
        engine: Engine that scores the clients, or that tells how to make one that computes F1.
        state: Server state whose model is scored.
        groups: Names of groups of clients.
        max_clients: Maximum number of clients of a group; see `sample_group`.
    """
    class_engine = add_class_metrics(context, engine)
    scores = {}
    for group in groups:
        if len(context.data.groups[group]):
            client_ids = sample_group(context, group, max_clients)
            scores[group] = _score_final(context, class_engine, state, client_ids)
    return scores


def sample_group(context: EngineContext, group: str, max_clients: int | None) -> np.ndarray:
    """Return the clients of a group that are evaluated.

    Args:
        context: The run.
        group: Name of the group.
        max_clients: Maximum number of clients; None is all. If the group has more, a random sample
            is drawn, the same in all evaluations of a run.
    """
    client_ids = context.data.groups[group]
    if max_clients is None or max_clients >= len(client_ids):
        return client_ids
    key = prng.key(context.seed, Stream.EVAL_CLIENTS, GroupStream[group.upper()])
    positions = prng.choice(key, len(client_ids), max_clients).sort().values
    sampled: np.ndarray = client_ids[positions.numpy()]
    return sampled


def score_clients(
    context: EngineContext, engine: Engine, state: ServerState, client_ids: np.ndarray
) -> Scores:
    """Personalize and score some clients.

    Args:
        context: The run.
        engine: Engine that scores the clients.
        state: Server state whose model is scored.
        client_ids: Indices of the clients, [clients].
    """
    return _to_scores(context, engine.score(state, client_ids), client_ids)


def truncate_routine(routine: Routine, num_passes: int) -> Routine:
    """Return a routine whose phases take `num_passes` epochs each, those that count steps too.

    An epoch is a pass over the last stream of a phase's batches. A phase without data stays.
    """
    phases = tuple(_truncate_phase(phase, num_passes) for phase in routine.phases)
    return routine._replace(phases=phases)


def _truncate_phase(phase: Phase, num_passes: int) -> Phase:
    if not phase.plan.specs:
        return phase
    return phase._replace(plan=phase.plan._replace(epochs=num_passes, steps=None))


def _score_final(
    context: EngineContext, engine: Engine, state: ServerState, client_ids: np.ndarray
) -> FinalScores:
    result = engine.score(state, client_ids)
    sums_after_passes = _score_after_passes(context, engine, state, client_ids, result)
    after_passes = {}
    for num_passes, sums_by_metric in sums_after_passes.items():
        after_passes[num_passes] = _compute_metric_ratios(sums_by_metric)
    f1 = {}
    stages = {"before": result.before, "after": result.after, **sums_after_passes}
    for stage, sums_by_metric in stages.items():
        macro_f1 = compute_f1(sums_by_metric)
        if macro_f1 is not None:
            f1[stage] = macro_f1
    return FinalScores(_to_scores(context, result, client_ids), after_passes, f1)


def _score_after_passes(
    context: EngineContext,
    engine: Engine,
    state: ServerState,
    client_ids: np.ndarray,
    result: ScoreResult,
) -> dict[str, dict[str, Tensor]]:
    """Return the sums of clients after each of `PERSONALIZE_PASSES`, by number of passes.

    Args:
        context: The run.
        engine: Engine that scores the clients.
        state: Server state whose model is scored.
        client_ids: Indices of the clients, [clients].
        result: Sums after all of personalization, used where a number of passes is all of it.
    """
    personalize = context.method.personalize
    if not personalize.phases:
        return {}
    sums_after_passes = {}
    for num_passes in PERSONALIZE_PASSES:
        truncated = truncate_routine(personalize, num_passes)
        if _list_plans(truncated) == _list_plans(personalize):
            sums_after_passes[str(num_passes)] = result.after
        else:
            sums_after_passes[str(num_passes)] = engine.score(state, client_ids, truncated).after
    return sums_after_passes


def _list_plans(routine: Routine) -> list[BatchPlan]:
    return [phase.plan for phase in routine.phases]


def _to_scores(context: EngineContext, result: ScoreResult, client_ids: np.ndarray) -> Scores:
    weights = {}
    for name, sums in result.after.items():
        if not is_class_metric(name):
            weights[name] = sums[:, 1].numpy()
    return Scores(
        ids=context.data.client_names[client_ids],
        before=_compute_metric_ratios(result.before),
        after=_compute_metric_ratios(result.after),
        weights=weights,
    )


def _compute_metric_ratios(sums_by_metric: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """Return each client's score by metric, without the class metrics."""
    ratios = {}
    for name, sums in sums_by_metric.items():
        if not is_class_metric(name):
            ratios[name] = compute_ratios(sums)
    return ratios
