"""The scores of every client in the runs of a part: a compressed file beside the part's record.

They are needed to say which methods are best for clients like these, where all seeds score the same
clients. A record without this file, as records had none before, is shown without such words.
"""

import gzip
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from fedtailor.errors import InputError
from fedtailor.storage.atomic import write_bytes
from fedtailor.storage.files import read_file
from fedtailor.storage.typed_json import encode_model, parse_versioned
from fedtailor.studies.config import COLUMNS, Scalar
from fedtailor.training.record.schema import RecordPart, RunRecord

SCORES_SUFFIX = ".scores.json.gz"
NUM_DIGITS = 5
"""Decimals of scores; an accuracy of 1 in 10,000 examples is still told apart."""


class RunScores(RecordPart):
    """The headline metric of every client of a run, by column; None for untested clients.

    `ids` are the clients of each group, and `data` is a checksum of the examples: runs with equal
    ones had the same split.
    """

    name: str
    seed: int
    value: Scalar | None = None
    data: str
    ids: dict[str, list[str]] = Field(default_factory=dict)
    columns: dict[str, list[float | None]] = Field(default_factory=dict)


class ClientScores(RecordPart):
    """The scores of the runs of a part."""

    format: Literal[1] = 1
    runs: list[RunScores]


class ScoresFile(RecordPart):
    """The file with the scores of clients, as the record of a part names it."""

    name: str
    num_bytes: int
    sha256: str


def collect_run_scores(record: RunRecord, value: Scalar | None) -> RunScores:
    """Return the scores of a run; of one that diverged there are none.

    Args:
        record: The run.
        value: The varied value that it has, if any.
    """
    columns = {}
    ids = {}
    for column in COLUMNS:
        group, stage = column.split()
        scores = (record.scores or {}).get(group)
        if scores is None:
            continue
        ids[group] = scores.ids
        columns[column] = [
            None if score is None else round(score, NUM_DIGITS)
            for score in scores.get_stage(stage).get(record.metric.name, [])
        ]
    return RunScores(
        name=record.name,
        seed=record.config.seed,
        value=value,
        data=record.checksums.data[:16],
        ids=ids,
        columns=columns,
    )


def write_client_scores(path: Path, runs: Sequence[RunScores]) -> ScoresFile:
    """Write the scores of the runs of a part, and return what its record says of the file."""
    # Without a time in the file, equal scores are equal bytes.
    content = gzip.compress(encode_model(ClientScores(runs=list(runs))), mtime=0)
    write_bytes(path, content)
    return ScoresFile(
        name=path.name, num_bytes=len(content), sha256=hashlib.sha256(content).hexdigest()
    )


def read_client_scores(folder: Path, scores_file: ScoresFile | None) -> ClientScores | None:
    """Return the scores that a record names; None if it names none.

    Args:
        folder: Where the record is.
        scores_file: What the record says of the file.
    """
    if scores_file is None:
        return None
    path = folder / scores_file.name
    content = read_file(path)
    if hashlib.sha256(content).hexdigest() != scores_file.sha256:
        raise InputError(
            f"'{path}' is not what its record names; put the file back, or run the part again."
        )
    return parse_versioned(path, gzip.decompress(content), ClientScores)


def count_splits(scores: ClientScores, value: Scalar | None) -> int:
    """Return how many splits of the data the runs had.

    Args:
        scores: Those of the part.
        value: The varied value.
    """
    return len({run.data for run in scores.runs if run.value == value})


def stack_scores(
    scores: ClientScores, value: Scalar | None, column: str
) -> dict[str, dict[int, np.ndarray]] | None:
    """Return the scores of clients by method and seed; None if runs scored other clients.

    Args:
        scores: Those of the part.
        value: The varied value.
        column: A group and a stage.
    """
    group = column.split()[0]
    runs = [run for run in scores.runs if run.value == value and column in run.columns]
    if len({tuple(run.ids[group]) for run in runs}) != 1:
        return None
    stacked: dict[str, dict[int, np.ndarray]] = {}
    for run in runs:
        values = [math.nan if score is None else score for score in run.columns[column]]
        stacked.setdefault(run.name, {})[run.seed] = np.array(values)
    return stacked
