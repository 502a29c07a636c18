"""Records of runs that never happened, for the tests of reports."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedtailor.data.dataset import ExampleSpec
from fedtailor.data.row_counts import RowCounts
from fedtailor.evaluation.client_statistics import compute_spread
from fedtailor.training.config import RunConfig
from fedtailor.training.record.build import sum_costs
from fedtailor.training.record.schema import (
    Checksums,
    Choices,
    ClientFigures,
    DatasetSummary,
    Figures,
    GroupScores,
    MetricInfo,
    RoundEntry,
    RunRecord,
    StageSummary,
    Status,
    Times,
)
from fedtailor.training.record.summary import compute_convergence, compute_final_window

Scores = Sequence[float | None]

GROUPS = ("participating", "validation", "unseen")
STAGES = ("before", "after")
GAIN = 0.08
"""Accuracy gained by personalizing."""
FLOPS_PER_ROUND = 2_000_000_000


def make_record(
    name: str = "fedsim",
    seed: int = 1,
    *,
    num_clients: int = 20,
    num_rounds: int = 10,
    skill: float = 0.7,
) -> RunRecord:
    """Return a finished run on ten classes.

    Three quarters of the clients take part, the rest are unseen, but for two of validation.

    Args:
        name: The method, with a label behind an @ if it has one.
        seed: Of the run and of its data.
        num_clients: Of all groups.
        num_rounds: Every second round is evaluated, and the last one.
        skill: The accuracy of the model, about.
    """
    rng = np.random.default_rng([seed, num_clients, *name.encode()])
    config = _make_config(name, seed, num_rounds)
    data = _make_data(seed, num_clients, rng)
    metric = MetricInfo(name="accuracy", higher_is_better=True)
    scores = {}
    for group in ("participating", "unseen"):
        ids = [data.clients[client] for client in data.groups[group]]
        scores[group] = _draw_scores(ids, skill, rng)
    rounds = [
        _make_round(round_idx, num_rounds, skill, rng) for round_idx in range(1, num_rounds + 1)
    ]
    cost = sum_costs(rounds).model_copy(
        update={
            "scoring_seconds": 0.5,
            "personalize_gradients": 8.0,
            "personalize_flops": 1_000_000,
        }
    )
    times = Times(training=2.0, evaluation=0.5, personalizing=0.25, compiling=1.0, rest=0.25)
    return RunRecord(
        status="finished",
        name=name,
        config=config,
        hparams=config.hparams,
        origins=dict.fromkeys(config.hparams, "default"),
        command=f"fedtailor run method={name} rounds={num_rounds} seed={seed} out=runs/{name}",
        versions={
            "fedtailor": "0.1.0",
            "python": "3.11.7",
            "torch": "2.13.0+cpu",
            "numpy": "2.4.6",
            "platform": "Linux-6.1-x86_64",
        },
        machine="A processor",
        commit="0123abcd",
        choices=Choices(
            engine="vectorized",
            chunk=256,
            compile=False,
            compile_reason="the run is short",
            ranks=None,
            precision="float32",
            threads=1,
            notes=(),
        ),
        metric=metric,
        data=data,
        checksums=Checksums(config="", data=f"data {seed}", weights=f"weights {seed}"),
        rounds=rounds,
        scores=scores,
        summary={group: _summarize(found, metric) for group, found in scores.items()},
        final_window=compute_final_window(rounds, num_rounds),
        convergence=compute_convergence(rounds, num_rounds, metric, None),
        cost=cost,
        times=times,
    )


def make_comparison(
    skills: Mapping[str, float], seeds: Sequence[int] = (1, 2, 3), **options: Any
) -> list[RunRecord]:
    """Return a record for each method and seed; options are those of `make_record`."""
    return [
        make_record(name, seed, skill=skill, **options)
        for name, skill in skills.items()
        for seed in seeds
    ]


def update_config(record: RunRecord, **changes: Any) -> RunRecord:
    """Return the run with changes of its configuration."""
    return record.model_copy(update={"config": record.config.model_copy(update=changes)})


def update_data(record: RunRecord, **changes: Any) -> RunRecord:
    """Return the run with changes of its data set."""
    return record.model_copy(update={"data": record.data.model_copy(update=changes)})


def update_choices(record: RunRecord, **changes: Any) -> RunRecord:
    """Return the run with changes of its choices."""
    return record.model_copy(update={"choices": record.choices.model_copy(update=changes)})


def add_passes(record: RunRecord) -> RunRecord:
    """Return the run with scores after 1 and 5 passes of personalizing."""
    assert record.scores is not None
    scores = {}
    for group, group_scores in record.scores.items():
        after_passes = {
            num_passes: _interpolate(group_scores, share)
            for num_passes, share in (("1", 0.5), ("5", 0.9))
        }
        scores[group] = group_scores.model_copy(update={"after_passes": after_passes})
    return _replace_scores(record, scores)


def scale_work(record: RunRecord, factor: float) -> RunRecord:
    """Return the run with more floating-point operations of clients and server."""
    rounds = []
    for entry in record.rounds:
        changes = {
            "flops": round(factor * entry.flops),
            "server_flops": round(factor * entry.server_flops),
        }
        rounds.append(entry.model_copy(update=changes))
    return record.model_copy(update={"rounds": rounds, "cost": sum_costs(rounds)})


def lose_first_client(record: RunRecord) -> RunRecord:
    """Return the run with an infinite loss of its first participating client."""
    assert record.scores is not None
    scores = record.scores["participating"]
    losses: ClientFigures = {
        stage: [None, *scores.get_stage(stage)["loss"][1:]] for stage in STAGES
    }
    return _replace_losses(record, losses)


def lose_all_clients(record: RunRecord) -> RunRecord:
    """Return the run with infinite losses of all participating clients."""
    assert record.scores is not None
    num_clients = len(record.scores["participating"].ids)
    return _replace_losses(record, {stage: [None] * num_clients for stage in STAGES})


def truncate(record: RunRecord, num_rounds: int, status: Status = "running") -> RunRecord:
    """Return the run after a few rounds."""
    return record.model_copy(
        update={
            "status": status,
            "rounds": record.rounds[:num_rounds],
            "scores": None,
            "summary": None,
            "final_window": None,
            "convergence": None,
            "cost": None,
            "times": None,
        }
    )


def convert_to_regression(record: RunRecord) -> RunRecord:
    """Return the run with a mean absolute error in place of the accuracy, and without labels."""
    converted = rename_accuracy(record, MetricInfo(name="mae", higher_is_better=False))
    return update_data(converted, classes=None, labels=None, server_labels=None)


def rename_accuracy(record: RunRecord, metric: MetricInfo) -> RunRecord:
    """Return the run with another metric in place of the accuracy, with the same values."""
    rounds = []
    for entry in record.rounds:
        scores = None
        if entry.scores is not None:
            scores = {
                group: {
                    stage: _rename_figure(figures, metric.name) for stage, figures in stages.items()
                }
                for group, stages in entry.scores.items()
            }
        rounds.append(entry.model_copy(update={"scores": scores}))
    final_scores = {}
    for group, group_scores in (record.scores or {}).items():
        changes = {
            stage: _rename_figure(group_scores.get_stage(stage), metric.name) for stage in STAGES
        }
        final_scores[group] = group_scores.model_copy(update=changes)
    num_rounds = record.config.rounds
    return _replace_scores(record.model_copy(update={"metric": metric}), final_scores).model_copy(
        update={
            "rounds": rounds,
            "final_window": compute_final_window(rounds, num_rounds),
            "convergence": compute_convergence(rounds, num_rounds, metric, None),
        }
    )


def replace_scores(record: RunRecord, group: str, before: Scores, after: Scores) -> RunRecord:
    """Return the run with other clients in a group, with these final scores as metric and loss.

    The mean over the last evaluations is that of the final scores.
    """
    assert record.scores is not None
    assert record.summary is not None
    assert record.final_window is not None
    metric = record.metric.name
    group_scores = GroupScores(
        ids=[f"{group}-{index}" for index in range(len(after))],
        before={"loss": list(before), metric: list(before)},
        after={"loss": list(after), metric: list(after)},
        weights=[0 if score is None else 10 for score in after],
    )
    window_means = {
        stage: {name: _average(values) for name, values in group_scores.get_stage(stage).items()}
        for stage in STAGES
    }
    final_window = record.final_window.model_copy(
        update={"mean": {**record.final_window.mean, group: window_means}}
    )
    return record.model_copy(
        update={
            "scores": {**record.scores, group: group_scores},
            "summary": {**record.summary, group: _summarize(group_scores, record.metric)},
            "final_window": final_window,
        }
    )


def remove_unseen_clients(record: RunRecord) -> RunRecord:
    """Return the run without unseen clients."""
    assert record.scores is not None
    changed = update_data(record, groups={**record.data.groups, "unseen": []})
    return _replace_scores(changed, {"participating": record.scores["participating"]})


def _replace_scores(record: RunRecord, scores: Mapping[str, GroupScores]) -> RunRecord:
    """Return the run with other final scores, and their summary."""
    summary = {group: _summarize(found, record.metric) for group, found in scores.items()}
    return record.model_copy(update={"scores": dict(scores), "summary": summary})


def _make_config(name: str, seed: int, num_rounds: int) -> RunConfig:
    method, at, _ = name.partition("@")
    hparams: dict[str, Any] = {"lr": 0.1, "batch": 10, "epochs": 2, "server_lr": 1.0}
    hparams |= {"finetune_epochs": 5, "finetune_steps": None}
    if method == "fedsim":
        hparams |= {"lam": 0.1, "beta": 0.5}
    return RunConfig(
        method=method,
        label=name if at else "",
        hparams=hparams,
        data="digits",
        data_options={"seed": seed, "alpha": 0.3},
        rounds=num_rounds,
        evaluate_every=2,
        seed=seed,
    )


def _make_data(seed: int, num_clients: int, rng: np.random.Generator) -> DatasetSummary:
    num_participating = num_clients * 3 // 4
    participating = list(range(num_participating))
    return DatasetSummary(
        name="digits",
        classes=10,
        server_examples=90,
        overlap=False,
        rows=RowCounts(1797, 1707, 90, 0, {}, 0, 0, 0),
        example_spec=ExampleSpec((1, 8, 8), (), 10, 1 / 16, tokens=False),
        clients=[f"client-{index}" for index in range(num_clients)],
        groups={
            "train": participating,
            "participating": participating,
            "validation": [num_participating, num_participating + 1],
            "unseen": list(range(num_participating + 2, num_clients)),
        },
        train_sizes=rng.integers(20, 120, num_clients).tolist(),
        test_sizes=rng.integers(5, 30, num_clients).tolist(),
        adapt_sizes=[20] * num_clients,
        adapts_on="train",
        labels=rng.multinomial(60, rng.dirichlet(np.full(10, 0.3), num_clients)).tolist(),
        server_labels=[9] * 10,
        checksum=f"data {seed}",
    )


def _draw_scores(ids: list[str], skill: float, rng: np.random.Generator) -> GroupScores:
    before = np.clip(rng.normal(skill, 0.1, len(ids)), 0, 1)
    after = np.clip(before + rng.normal(GAIN, 0.05, len(ids)), 0, 1)
    return GroupScores(
        ids=ids,
        before={"loss": (1.5 - before).tolist(), "accuracy": before.tolist()},
        after={"loss": (1.5 - after).tolist(), "accuracy": after.tolist()},
        weights=[20.0] * len(ids),
    )


def _make_round(
    round_idx: int, num_rounds: int, skill: float, rng: np.random.Generator
) -> RoundEntry:
    level = skill * (1 - 0.8 * np.exp(-4 * round_idx / num_rounds))
    scores: dict[str, dict[str, Figures]] = {}
    for rank, group in enumerate(GROUPS):
        before = float(level - rank / 50 + rng.normal(0, 0.01))
        after = before + GAIN
        scores[group] = {
            "before": {"loss": 1.5 - before, "accuracy": before, "acc_micro": before},
            "after": {"loss": 1.5 - after, "accuracy": after, "acc_micro": after},
        }
    is_evaluated = round_idx % 2 == 0 or round_idx == num_rounds
    return RoundEntry(
        round=round_idx,
        bytes_down=190_000,
        bytes_up=180_000,
        steps=120,
        seconds=0.2,
        gradients=100.0,
        flops=FLOPS_PER_ROUND,
        server_gradients=10.0,
        server_flops=FLOPS_PER_ROUND // 10,
        scores=scores if is_evaluated else None,
    )


def _summarize(scores: GroupScores, metric: MetricInfo) -> dict[str, StageSummary]:
    """Return the summary of each stage, with a mean over examples, a loss and an F1 of their own.

    The figures over clients are those of the scores.
    """
    summaries = {}
    for stage in (*STAGES, *scores.after_passes):
        values = scores.get_values(stage, metric.name)
        spread = compute_spread(values, metric.higher_is_better)
        is_tested = np.array(scores.weights, dtype=float) > 0
        is_finite = np.isfinite(scores.get_values(stage, "loss"))
        has_mean = bool(np.isfinite(spread.mean))
        summaries[stage] = StageSummary(
            acc_micro=0.71,
            acc_macro=spread.mean if has_mean else None,
            std=spread.std if has_mean else None,
            worst_tenth=spread.worst_tenth if has_mean else None,
            loss=0.9,
            f1_macro=0.65,
            tested=int(is_tested.sum()),
            untested=int((~is_tested).sum()),
            diverged=int((is_tested & ~is_finite).sum()),
        )
    return summaries


def _interpolate(scores: GroupScores, share: float) -> ClientFigures:
    """Return scores on the way from those before personalizing (0) to those after it (1)."""
    figures: ClientFigures = {}
    for name, before in scores.before.items():
        pairs = np.array([before, scores.after[name]], dtype=float)
        figures[name] = ((1 - share) * pairs[0] + share * pairs[1]).tolist()
    return figures


def _replace_losses(record: RunRecord, losses: ClientFigures) -> RunRecord:
    """Return the run with other losses of participating clients, by stage."""
    assert record.scores is not None
    scores = record.scores["participating"]
    changes = {stage: {**scores.get_stage(stage), "loss": losses[stage]} for stage in STAGES}
    changed = {**record.scores, "participating": scores.model_copy(update=changes)}
    return _replace_scores(record, changed)


def _rename_figure(figures: Mapping[str, Any], metric_name: str) -> dict[str, Any]:
    return {metric_name if name == "accuracy" else name: value for name, value in figures.items()}


def _average(values: Scores) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
