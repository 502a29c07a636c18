"""Trials: runs as `fedtailor run` does them, scored on validation clients' train examples.

The first trial trains on the run's own training clients with its own seed. Each further trial has
another seed and other validation clients: those of the first trial train in it, and as many of the
others do not. So every trial trains on as many clients as the run does and is scored on clients
that it has not trained on. In one trial all settings have the same clients, cohorts and first
weights.

A validation client is personalized on two thirds of its train examples and scored on the other
third, in turn for each third. Test examples and unseen clients are never used.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.core.types import Params, ServerState
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.examples import ClientExamples, Split
from fedtailor.data.label_table import subsample_evenly
from fedtailor.engines import factory
from fedtailor.engines.base import Engine
from fedtailor.engines.context import EngineContext
from fedtailor.errors import DivergedError
from fedtailor.evaluation.client_statistics import compute_ratios
from fedtailor.inspection.settings import Setting
from fedtailor.training import from_config
from fedtailor.training.config import RunConfig
from fedtailor.training.context import get_cohort_size
from fedtailor.training.loop import run_rounds
from fedtailor.training.pretraining import run_pretraining
from fedtailor.training.start_weights import read_start_params

STAGES = ("before", "after")
"""Before and after personalizing."""

NUM_FOLDS = 3
"""Parts of a validation client's train examples, each of which is scored once."""

MAX_JUDGED_CLIENTS = 20
"""Maximum number of validation clients that a trial is scored on."""

MIN_JUDGED_EXAMPLES = 2
"""Minimum number of train examples of such a client: one to personalize on and one to score."""

NUM_SCORED_ROUNDS = 3
"""Rounds in the last fifth of a trial after which clients are scored."""


class TrialScores(NamedTuple):
    """Scores of one setting in one trial."""

    final: dict[str, float]  # by stage, mean over the last fifth of the trial; higher is better
    params: Params  # the model after the last round


Trials = list[TrialScores | None]
"""Scores of one setting in each trial; None where the model diverged."""


@dataclass(frozen=True)
class TrialData:
    """The clients of a trial.

    Validation clients are replaced by as many copies as there are folds, behind all other clients.
    """

    data: FederatedDataset
    copy_ids: NDArray[np.int64]  # [judged clients, folds]
    num_examples: int  # that scores are over


def make_trial_data(data: FederatedDataset, trial: int) -> TrialData:
    """Return the clients of a trial.

    Args:
        data: The data set of the run.
        trial: Number of the trial; 0 has the run's own groups.
    """
    train_ids, validation_ids = rotate_groups(data, trial)
    sizes = data.clients.splits["train"].compute_sizes()
    judgeable = validation_ids[sizes[validation_ids] >= MIN_JUDGED_EXAMPLES]
    judged = subsample_evenly(judgeable, MAX_JUDGED_CLIENTS)
    groups = data.groups | {"train": train_ids, "participating": train_ids}
    return _append_folds(replace(data, groups=groups, should_check=False), judged)


def rotate_groups(
    data: FederatedDataset, trial: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the training and the validation clients of a trial, none of them unseen.

    Args:
        data: The data set of the run.
        trial: Number of the trial.
    """
    train_ids = data.groups["train"]
    validation_ids = data.groups["validation"]
    if trial == 0:
        return train_ids, validation_ids
    order = np.random.Generator(np.random.Philox(0)).permutation(train_ids)
    pool = np.concatenate([validation_ids, order])
    start = trial * len(validation_ids)
    positions = np.arange(start, start + len(validation_ids)) % len(pool)
    is_validation = np.zeros(len(pool), bool)
    is_validation[positions] = True
    return np.sort(pool[~is_validation]), np.sort(pool[is_validation])


def _append_folds(data: FederatedDataset, judged: NDArray[np.int64]) -> TrialData:
    """Return the data with copies of clients, each of which is tested on a part of `train`."""
    train = data.clients.splits["train"]
    adapt_rows = []
    test_rows = []
    for client in judged:
        rows = np.random.Generator(np.random.Philox(int(client))).permutation(
            train.get_rows(int(client))
        )
        for fold in range(NUM_FOLDS):
            is_tested = np.arange(len(rows)) % NUM_FOLDS == fold
            test_rows.append(rows[is_tested])
            adapt_rows.append(rows[~is_tested])
    splits = {}
    for name, split in data.clients.splits.items():
        splits[name] = _append_clients(split, test_rows if name == "test" else adapt_rows)
    num_clients = data.clients.count
    num_copies = len(test_rows)
    copy_names = np.array([f"copy {index}" for index in range(num_copies)], dtype=np.str_)
    groups = data.groups | {"validation": np.arange(num_clients, num_clients + num_copies)}
    appended = replace(
        data,
        clients=data.clients._replace(splits=splits),
        client_names=np.concatenate([data.client_names, copy_names]),
        groups=groups,
        should_check=False,  # copies have examples in common on purpose
    )
    copy_ids = groups["validation"].reshape(len(judged), NUM_FOLDS)
    return TrialData(appended, copy_ids, sum(map(len, test_rows)))


def _append_clients(split: Split, rows_by_client: list[NDArray[np.int64]]) -> Split:
    """Return the split with more clients, which have these rows."""
    sizes = [len(rows) for rows in rows_by_client]
    offsets = split.offsets[-1] + np.cumsum(sizes, dtype=np.int64)
    index = np.concatenate([split.index, *rows_by_client])
    return Split(index, np.concatenate([split.offsets, offsets]))


def run_trial(
    setting: Setting, trial_data: TrialData, trial: int, num_rounds: int
) -> TrialScores | None:
    """Train a setting as `fedtailor run` does, and score it; None if the model diverges.

    Args:
        setting: The run.
        trial_data: The clients of the trial.
        trial: Number of the trial, which is added to the seed of the run.
        num_rounds: Rounds to train; what depends on the number of rounds follows the run's.
    """
    config = setting.config.model_copy(update={"seed": setting.config.seed + trial})
    context = from_config.build_context(config, trial_data.data)
    engine = make_trial_engine(config, context)
    final_rounds = list_scored_rounds(num_rounds)
    scores: list[dict[str, float]] = []
    try:
        state = context.init_server_state(_make_first_params(config, context))
        cohort_size = get_cohort_size(context, config.cohort)
        for finished in islice(run_rounds(context, engine, state, cohort_size), num_rounds):
            state = finished.state
            if finished.rounds_done in final_rounds:
                scores.append(_score(context, engine, state, trial_data.copy_ids))
    except DivergedError:
        return None
    final = {stage: float(np.mean([each[stage] for each in scores])) for stage in STAGES}
    if not all(np.isfinite(list(final.values()))):
        return None
    return TrialScores(final, state.params)


def list_scored_rounds(num_rounds: int) -> list[int]:
    """Return the rounds in the last fifth after which clients are scored, the last one included."""
    first = num_rounds - num_rounds // 5
    rounds = np.linspace(num_rounds, first, NUM_SCORED_ROUNDS, endpoint=False)
    return sorted({int(round_idx) for round_idx in np.ceil(rounds)})


def make_trial_engine(config: RunConfig, context: EngineContext) -> Engine:
    """Return the engine of a trial, in this process; it compiles only what was asked for."""
    name = "vectorized" if config.engine == "distributed" else config.engine
    compile_mode = False if config.compile == "auto" else config.compile
    return factory.make_engine(context, name, config.chunk, compile_mode)


def _make_first_params(config: RunConfig, context: EngineContext) -> Params:
    if config.start_from:
        return read_start_params(config, context)
    return run_pretraining(context, from_config.get_pretraining_config(config))


def _score(
    context: EngineContext, engine: Engine, state: ServerState, copy_ids: NDArray[np.int64]
) -> dict[str, float]:
    """Return the mean score over validation clients by stage, negated if lower is better."""
    result = engine.score(state, copy_ids.ravel())
    metric = context.task.metrics[0]
    sign = 1 if metric.higher_is_better else -1
    scores = {}
    for stage, sums in (("before", result.before), ("after", result.after)):
        sums_by_client = sums[metric.name].reshape(*copy_ids.shape, 2).sum(dim=1)
        ratios = compute_ratios(sums_by_client)
        scores[stage] = sign * float(np.mean(ratios))
    return scores


def subsample_server(data: FederatedDataset, fraction: float, trial: int) -> FederatedDataset:
    """Return the data set with a random part of the server's examples.

    Args:
        data: The data set.
        fraction: The part, from 0 to 1.
        trial: Number of the trial; each has another part.
    """
    server = data.server
    if server is None or fraction >= 1:
        return data
    rows = server.splits["train"].get_rows(0)
    num_examples = max(1, round(fraction * len(rows)))
    order = np.random.Generator(np.random.Philox(trial)).permutation(rows)
    kept_rows = np.sort(order[:num_examples])
    split = Split(np.arange(num_examples), np.array([0, num_examples]))
    reduced = ClientExamples(server.x[kept_rows], server.y[kept_rows], {"train": split})
    return replace(data, server=reduced, server_rows=None, should_check=False)


def collect_scores(trials: Sequence[Trials], num_trials: int, stage: str) -> NDArray[np.float64]:
    """Return scores [trials, settings] of a stage.

    They are NaN for trials that a setting was left out of, and minus infinity where it diverged.

    Args:
        trials: The trials of each setting.
        num_trials: How many trials there are.
        stage: Before or after personalizing.
    """
    table = np.full((num_trials, len(trials)), math.nan)
    for column, setting_trials in enumerate(trials):
        for row, scores in enumerate(setting_trials):
            table[row, column] = -math.inf if scores is None else scores.final[stage]
    return table
