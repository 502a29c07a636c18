"""How many trials of how many rounds there are, and how long they take: from counts alone.

Steps and floating-point operations are counted, and no clock is read, so that an inspection says
the same on any machine.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedtailor.core.types import Routine
from fedtailor.data.batching import count_steps
from fedtailor.data.examples import ClientExamples
from fedtailor.evaluation.costs import CostMeter
from fedtailor.inspection.settings import Setting
from fedtailor.inspection.trials import NUM_SCORED_ROUNDS, TrialData
from fedtailor.training import from_config
from fedtailor.training.context import get_cohort_size

STEP_SECONDS = 2e-3
"""Seconds that a step of all clients together takes whatever the size of its operations."""

FLOPS_PER_SECOND = 2e10
"""Floating-point operations in a second on a core."""

MAX_SECONDS = 60.0
"""Estimated seconds that trials may take together, unless even the fewest take longer."""

MAX_TRIALS = 8
MIN_TRIALS = 4
"""Trials of each setting. If fewer would fit, each has fewer rounds than the run."""

NUM_SCREENING_TRIALS = 3
"""Trials after which settings that are behind are left out."""

REMAINING_SHARE = 0.5
"""About the share of the settings that remain."""

MIN_ROUNDS = 30
"""Rounds of a trial, at least, if the run has as many."""


class Work(NamedTuple):
    """Estimated seconds that a setting takes."""

    round_seconds: float
    score_seconds: float  # of scoring validation clients once


class Workload(NamedTuple):
    """The trials that are run."""

    num_trials: int
    num_rounds: int
    seconds: float  # estimated, of all trials together


def estimate_work(setting: Setting, trial_data: TrialData) -> Work:
    """Count what a round of a setting, and scoring it, take."""
    context = from_config.build_context(setting.config, trial_data.data)
    meter = CostMeter(context)
    data = context.data
    train_ids = data.groups["train"]
    cohort_size = get_cohort_size(context, setting.config.cohort)
    steps_by_client = context.count_steps(train_ids)
    # About the median of the maximum over a cohort of random clients.
    steps = float(np.quantile(steps_by_client, 1 - 0.5 / cohort_size))
    flops = cohort_size * float(meter.compute_client_cost(train_ids).flops.mean())
    flops += float(meter.compute_server_cost(cohort_size).flops.sum())
    for routine in (context.method.server, context.method.correct_update):
        if routine is not None and data.server is not None:
            steps += _count_routine_steps(routine, data.server, np.array([0]))
    copy_ids = trial_data.copy_ids.ravel()
    score_steps = _count_routine_steps(context.method.personalize, data.clients, copy_ids)
    score_flops = float(meter.compute_personalize_cost(copy_ids).flops.sum())
    return Work(_to_seconds(steps, flops), _to_seconds(score_steps, score_flops))


def plan_workload(work: Sequence[Work], num_rounds: int, max_seconds: float) -> Workload:
    """Return as many trials of as many rounds as fit into a time.

    Args:
        work: What each setting takes.
        num_rounds: Rounds of the run.
        max_seconds: The time; the fewest trials may take longer.
    """
    round_seconds = sum(each.round_seconds for each in work)
    score_seconds = sum(each.score_seconds for each in work) * NUM_SCORED_ROUNDS
    whole_seconds = num_rounds * round_seconds + score_seconds
    for num_trials in range(MAX_TRIALS, MIN_TRIALS - 1, -1):
        seconds = _count_full_trials(num_trials) * whole_seconds
        if seconds <= max_seconds:
            return Workload(num_trials, num_rounds, seconds)
    num_full_trials = _count_full_trials(MIN_TRIALS)
    affordable = math.floor((max_seconds / num_full_trials - score_seconds) / round_seconds)
    rounds = min(num_rounds, max(MIN_ROUNDS, affordable))
    seconds = num_full_trials * (rounds * round_seconds + score_seconds)
    return Workload(MIN_TRIALS, rounds, seconds)


def _count_full_trials(num_trials: int) -> float:
    """Return the number of trials, where one of the remaining settings counts as a part."""
    return NUM_SCREENING_TRIALS + REMAINING_SHARE * (num_trials - NUM_SCREENING_TRIALS)


def _count_routine_steps(
    routine: Routine, examples: ClientExamples, client_ids: np.ndarray
) -> float:
    """Return the steps of the client that has the most, all phases together."""
    num_steps = 0.0
    for phase in routine.phases:
        num_steps += float(count_steps(phase.plan, examples, client_ids).max())
    return num_steps


def _to_seconds(steps: float, flops: float) -> float:
    return steps * STEP_SECONDS + flops / FLOPS_PER_SECOND
