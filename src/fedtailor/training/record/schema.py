"""The parts of a record: its specification, the choices made for it, and its results.

Records are typed and carry the version of their format. `training/run_dir.py` reads and writes
them; the modules beside this one compute their parts.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, field_serializer

from fedtailor.data.dataset import ExampleSpec
from fedtailor.data.row_counts import RowCounts
from fedtailor.engines.compile_policy import CompileMode
from fedtailor.training.config import RunConfig

FORMAT: Literal[4] = 4
"""The version of the files in a run's folder; other versions are refused."""

Status = Literal["running", "interrupted", "finished", "diverged"]
Origin = Literal["validation", "given", "run", "default"]
"""Where a hyper-parameter's value comes from.

It is chosen by validation clients, given by the user, computed from the size of the run, or the
default.
"""

Figures = dict[str, float | None]
"""Means over clients by the name of the figure; None where no client could be tested."""
ClientFigures = dict[str, list[float | None]]
"""The figures of each client by name, in the order of their ids; None for untested clients."""


class RecordPart(BaseModel):
    """A part of a record: immutable, with declared keys alone."""

    model_config = ConfigDict(frozen=True, extra="forbid")


PERCENT_METRICS = ("accuracy", "f1", "precision", "recall", "auc")
"""Names of metrics from 0 to 1, which are shown in percent."""


class MetricInfo(RecordPart):
    """The headline metric of a task."""

    name: str
    higher_is_better: bool

    @property
    def is_percent(self) -> bool:
        """Whether values are from 0 to 1 and are shown in percent."""
        return self.name in PERCENT_METRICS


class Choices(RecordPart):
    """Choices that are made once, before the first round; a resumed run keeps them."""

    engine: str
    chunk: int | None
    compile: CompileMode
    compile_reason: str
    ranks: int | None
    precision: str
    threads: int
    threads_reason: str = ""
    notes: tuple[str, ...]


class Checksums(RecordPart):
    """Checksums of the specification's file, and of the data and first weights.

    The latter are what the methods of a comparison have in common.
    """

    config: str
    data: str
    weights: str


class StartWeights(RecordPart):
    """The run that first weights were taken from."""

    path: str
    name: str
    seed: int
    rounds: int  # rounds done
    weights: str  # checksum, as that of first weights


class DatasetSummary(RecordPart):
    """The clients of a data set, their groups and their sizes.

    Lists are in the order of client indices. Label counts are None for data without classes, and
    where clients times classes are too many to record.
    """

    name: str
    classes: int | None
    server_examples: int
    overlap: bool
    rows: RowCounts
    example_spec: ExampleSpec
    clients: list[str]
    groups: dict[str, list[int]]
    train_sizes: list[int]
    test_sizes: list[int]
    adapt_sizes: list[int]
    adapts_on: str
    labels: list[list[int]] | None
    server_labels: list[int] | None
    checksum: str

    @field_serializer("example_spec", "rows")
    def _serialize_tuple(self, value: ExampleSpec | RowCounts) -> dict[str, Any]:
        return value._asdict()


class Work(RecordPart):
    """Bytes, steps, seconds and computation; of one round, or of all.

    `steps`, `gradients` and `flops` are the clients' together. One gradient is one gradient of the
    plain loss on a batch of FedAvg.
    """

    bytes_down: int
    bytes_up: int
    steps: int
    seconds: float
    gradients: float
    flops: int
    server_gradients: float
    server_flops: int


class RoundEntry(Work):
    """A round: its cost, and mean scores if clients were evaluated.

    Scores are by group and stage, "before" or "after" personalizing.
    """

    round: int
    scores: dict[str, dict[str, Figures]] | None


class RunCost(Work):
    """The cost of all rounds, of the final evaluation, and of personalizing for a client.

    The latter is a mean over clients.
    """

    scoring_seconds: float = 0.0
    personalize_gradients: float | None = None
    personalize_flops: int | None = None


class Times(RecordPart):
    """Seconds of a run by what they were spent on, over all its starts; they add up to `total`.

    Personalizing is that of clients that are evaluated, and is no part of `evaluation`, which is
    scoring alone. Seconds of a process that was killed are known up to the last record.
    """

    data: float = 0.0
    compiling: float = 0.0
    training: float = 0.0
    evaluation: float = 0.0
    personalizing: float = 0.0
    saving: float = 0.0
    rest: float = 0.0

    @property
    def total(self) -> float:
        """The seconds of the wall clock."""
        return float(sum(getattr(self, name) for name in type(self).model_fields))

    def add(self, seconds: Mapping[str, float]) -> "Times":
        """Return the sum with further seconds by their names."""
        sums = {name: getattr(self, name) + seconds[name] for name in type(self).model_fields}
        return Times(**sums)


class GroupScores(RecordPart):
    """The final scores of every client of a group.

    `after_passes` has them after 1 and 5 passes of personalizing, with the number of passes as
    text; `weights` is how much of each client was tested: examples, or tokens.
    """

    ids: list[str]
    before: ClientFigures
    after: ClientFigures
    weights: list[float | None]
    after_passes: dict[str, ClientFigures] = {}

    def get_stage(self, stage: str) -> ClientFigures:
        """Return the figures of a stage; empty if it was not scored.

        Stages are "before", "after" and numbers of passes.
        """
        stages = {"before": self.before, "after": self.after, **self.after_passes}
        return stages.get(stage, {})

    def get_values(self, stage: str, metric: str) -> np.ndarray:
        """Return a figure of each client [clients]; empty if it was not scored.

        It is NaN for clients without test examples, and infinite where a model has diverged.
        """
        values = []
        for value, weight in zip(self.get_stage(stage).get(metric, []), self.weights, strict=False):
            if value is not None:
                values.append(value)
            elif weight:
                values.append(math.inf)
            else:
                values.append(math.nan)
        return np.array(values, dtype=float)


class StageSummary(RecordPart):
    """The headline metric, loss and macro F1 of a group at one stage, after the last round.

    `acc_micro` is over examples; `acc_macro`, `std` and `worst_tenth` are over the `tested`
    clients, those with test examples. A figure is None without tested clients, and where the model
    of one has diverged (`diverged` counts those with an infinite loss), for no mean leaves it out.
    """

    tested: int = 0
    untested: int = 0
    diverged: int = 0

    acc_micro: float | None
    acc_macro: float | None
    std: float | None
    worst_tenth: float | None
    loss: float | None
    f1_macro: float | None = None


class FinalWindow(RecordPart):
    """Rounds with evaluations in the last fifth of all, and mean figures by group and stage."""

    eval_points: list[int]
    mean: dict[str, dict[str, Figures]]


class Convergence(RecordPart):
    """Rounds and bytes until the rolling mean of the headline metric reaches a level.

    They are None if it never does. `rise_time` is until nine tenths of its last value,
    `rounds_to_half` until 0.5, of metrics that are shown in percent.
    """

    rise_time: int | None
    rounds_to_half: int | None
    target: float | None
    rounds_to_target: int | None
    bytes_to_target: int | None


class RunRecord(RecordPart):
    """The record of a run, in which fields that are known at its end are None until then."""

    format: Literal[4] = FORMAT
    status: Status
    name: str
    config: RunConfig
    previous_rounds: tuple[int, ...] = ()  # asked for before the run was made longer or shorter
    hparams: dict[str, Any]
    origins: dict[str, Origin]
    command: str
    versions: dict[str, str]
    machine: str
    commit: str | None
    choices: Choices
    metric: MetricInfo
    data: DatasetSummary
    checksums: Checksums
    started_from: StartWeights | None = None  # the weights of another run
    rounds: list[RoundEntry] = []
    stopped_early_after: int | None = None  # rounds, if validation clients improved no more
    scores: dict[str, GroupScores] | None = None
    summary: dict[str, dict[str, StageSummary]] | None = None
    final_window: FinalWindow | None = None
    convergence: dict[str, dict[str, Convergence]] | None = None
    cost: RunCost | None = None
    times: Times | None = None
    problem: str | None = None

    @property
    def num_rounds(self) -> int:
        """The rounds that the run has in all: those asked for, unless it stopped early."""
        return self.stopped_early_after or self.config.rounds


def has_same_data(records: Iterable[RunRecord]) -> bool:
    """Return whether runs had the same clients with the same examples, whatever their seeds."""
    return len({record.checksums.data for record in records}) == 1
