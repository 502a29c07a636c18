"""What a part's trials choose before it is run: as `fedtailor tune` would, in any number of processes."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedtailor.disk import write_bytes
from fedtailor.run.record import Folder
from fedtailor.run.spec import Comparison
from fedtailor.run.study.planning import TUNED, Asked, Chosen, Planned, tuning_of
from fedtailor.run.study.working import Unit, status_of, units_of
from fedtailor.run.tuning import Trial, chosen_file, ready, validated, winner_of, write_trials


class Choice(NamedTuple):
    """The trials of a part."""

    part: str
    comparison: Comparison
    trials: list[Trial]
    place: Path

    def units(self) -> list[Unit]:
        """What is left to be tried."""
        runs = [(trial.spec, trial.place) for trial in self.trials]
        return units_of(self.part, f"{self.part} {TUNED}", runs, self.comparison.at_once())


def choices(asked: Asked, planned: Sequence[Planned], out: Path) -> dict[str, Choice]:
    """The trials of every part that has any, checked."""
    made = {}
    for each in planned:
        comparison = tuning_of(asked, each)
        if comparison is not None:
            place = out / each.part.name / TUNED
            made[each.part.name] = Choice(each.part.name, comparison, ready(comparison, place), place)
    return made


def chosen(choice: Choice) -> Chosen | None:
    """What the trials have chosen, written down beside them; None until all of them have come to their end."""
    done = [trial._replace(figure=_figure(trial.place)) for trial in choice.trials]
    if any(trial.figure is None for trial in done):
        return None
    write_trials(choice.place, done)
    write_bytes(choice.place / "chosen.toml", chosen_file(choice.comparison, done).encode())
    own = {word: [trial for trial in done if trial.word == word] for word in choice.comparison.methods}
    return {word: winner_of(trials).point for word, trials in own.items()}


def _figure(place: Path) -> float | None:
    """What a trial has reached; NaN if it diverged, None if it has not come to its end."""
    status = status_of(place)
    return validated(Folder(place).record()) if status == "finished" else math.nan if status == "diverged" else None
