"""Will the server's data help? Looked at before any long run, without a test example or a new client.

Short trials (`inspecting_trials`) predict what server learning gains: the score of validation clients with the server's
data minus the score without. Beside them stand the distances that may explain it: of labels, of images, of examples,
and of gradients at the warm model, with FSL's conditions.
"""

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from fedtailor.analysis.gradients import batch_of
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.picture import spaced
from fedtailor.errors import require
from fedtailor.run import build
from fedtailor.run.inspecting_closeness import PEOPLE, Closeness, closeness
from fedtailor.run.inspecting_trials import JUDGED, LAST, ROUNDS, WARM, Bench, Trial, bench, of_people, score
from fedtailor.run.spec import Spec
from fedtailor.types import Params

GAMMAS, BETAS, PARTS = (0.1, 0.3, 1.0), (0.0, 0.25, 1.0), (0.25, 0.5)
LEAST = 2
"""Examples that a server must have."""
NOTICED, FEWEST, HARM = 0.01, 2, 0.05
"""A gain is noticed from one point (or 1 % of the error) and two examples on; from a loss of five on, the data harm."""
CHANCE = 1.5
"""Labels that the warm model gives at most so many times as often as their commonest one occurs tell it nothing."""


class Inspection(NamedTuple):
    """What was found, and what follows from it."""

    name: str
    examples: int  # of the server's
    looked_at: str
    judged: int  # examples of validation clients that every score is over
    warm: float  # the warm model's score on validation clients' examples
    agreement: float  # the warm model's score on the server's
    chance: float | None  # the share of the server's commonest label
    without: Trial  # no server data
    gammas: list[Trial]
    betas: list[Trial]
    parts: list[Trial]  # of the server's data, at the best gamma; empty unless it helps
    closeness: Closeness

    def gain(self, trial: Trial) -> float:
        """By how much a trial beats that without server data: in accuracy, or as a part of the error."""
        if trial.score is None or self.without.score is None:
            return float("-inf")
        return (trial.score - self.without.score) / (1.0 if self.without.score >= 0 else -self.without.score)

    @property
    def predicted(self) -> float:
        """What server learning gains at FSL's own weight, gamma = 1: the figure that puts server data in order."""
        return self.gain(self.gammas[-1])

    @property
    def strange(self) -> bool:
        """Whether the warm model finds the server's labels no better than chance."""
        return self.chance is not None and self.agreement <= CHANCE * self.chance

    @property
    def gamma(self) -> Trial:
        """The best gamma; of data that look strange only gamma = 1, as little of any data may steady a model."""
        return self.gammas[-1] if self.strange else max(self.gammas, key=self.gain)

    @property
    def beta(self) -> Trial:
        """The best beta; without trials, none."""
        return max(self.betas, key=self.gain, default=self.without)

    @property
    def verdict(self) -> str:
        """helps, little or harms."""
        noticed = max(NOTICED, FEWEST / self.judged)
        if self.gain(self.gamma) >= noticed:
            return "helps"
        return "harms" if self.predicted <= -(noticed if self.strange else max(noticed, HARM)) else "little"


def inspect(
    spec: Spec,
    tell: Callable[[str], None] | None = None,
    betas: tuple[float, ...] = BETAS,
    parts: tuple[float, ...] = PARTS,
) -> Inspection:
    """Looks at the data of a specification with its model, cohort and hyper-parameters of local training.

    `tell` is called with what is being done; `betas` and `parts` are tried beside the weights of server learning.
    """
    say = tell or _silent
    if spec.threads:
        torch.set_num_threads(spec.threads)
    data = build.dataset(spec)
    _refuse(data)
    place = bench(spec, data)
    say(f"FedAvg, {WARM} rounds")
    warm = next(islice(place.rounds("fsl", place.task.params, 0, WARM, gamma=0.0, server_lr=1.0), WARM - 1, None))
    say("distances")
    before = _before_trials(place, warm)
    learned = _tried(say, "gamma", (0.0, *GAMMAS), partial(place.learning, warm=warm))
    corrected = _tried(say, "beta", betas, partial(place.correcting, warm=warm))
    found = before._replace(without=learned[0], gammas=learned[1:], betas=corrected)
    if found.verdict != "helps":
        return found
    return found._replace(parts=_tried(say, "part", parts, partial(place.part, gamma=found.gamma.value, warm=warm)))


def _tried(
    say: Callable[[str], None], what: str, values: tuple[float, ...], run: Callable[[float], Trial]
) -> list[Trial]:
    """A trial for each value."""
    made = []
    for value in values:
        say(f"{what} = {value:g}, {ROUNDS} rounds")
        made.append(run(value))
    return made


def _before_trials(place: Bench, warm: Params) -> Inspection:
    """What is known before any trial."""
    data, task, own = place.data, place.task, place.data.server
    assert own is not None
    rows = spaced(own.splits["train"].of(0), JUDGED)
    labelled = data.classes is not None and own.y.ndim == 1
    return Inspection(
        name=data.name,
        examples=len(own.splits["train"].of(0)),
        looked_at=_looked_at(data),
        judged=len(place.judges.y),
        warm=score(task, warm, place.judges),
        agreement=score(task, warm, batch_of(own, rows, data.units, next(iter(warm.values())))),
        chance=float(np.bincount(own.y[rows].astype(np.int64)).max() / len(rows)) if labelled else None,
        without=Trial(0.0, None),
        gammas=[],
        betas=[],
        parts=[],
        closeness=closeness(place, warm),
    )


def _looked_at(data: FederatedDataset) -> str:
    judged, some = len(of_people(data, "validation", JUDGED)), min(PEOPLE, len(data.groups["train"]))
    return (
        f"Training clients' train examples for training, of {some} of them for distances; {judged:,} train examples of "
        f"{len(data.groups['validation']):,} validation clients for every score, which is the mean of {LAST} rounds; "
        "no test example, and nobody new."
    )


def _refuse(data: FederatedDataset) -> None:
    """Refuses data that trials cannot be made with."""
    held = 0 if data.server is None else len(data.server.splits["train"].of(0))
    asked = "hold some out for it (server=0.05, say)"
    require(held > 0, f"inspect: the server of data set '{data.name}' has no examples; {asked}.")
    require(held >= LEAST, f"inspect: the server needs at least {LEAST} examples to be looked at, got {held}; {asked}.")
    people = len(data.groups["validation"])
    advice = "give it some (validation_clients=0.2, say)"
    require(people > 0, f"inspect: data set '{data.name}' has no validation clients to judge by; {advice}.")


def _silent(_: str) -> None:
    """Says nothing."""
