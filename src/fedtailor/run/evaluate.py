"""Scores of groups of clients, before and after personalising."""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from fedtailor import keyed
from fedtailor.engines.base import Engine, Scored, Setting
from fedtailor.run.classes import f1_of, is_class, with_classes
from fedtailor.run.metrics import Scores, per_client
from fedtailor.types import State, Work

GROUPS = ("local", "new")
PASSES = (1, 5)
"""After how many passes of personalising clients are scored in the end, besides after all of it."""


class Full(NamedTuple):
    """A group's final scores, also after a few passes of personalising, and the F1 over its classes, if it has any."""

    scores: Scores
    after_steps: dict[str, dict[str, np.ndarray]]
    f1: dict[str, float]  # before, after, and after those passes


def evaluate(
    setting: Setting, engine: Engine, state: State, groups: tuple[str, ...] = GROUPS, most: int | None = None
) -> dict[str, Scores]:
    """Personalises and scores the clients of the groups, at most so many of each; an empty group is left out."""
    return {
        group: scores_of(setting, engine, state, some(setting, group, most))
        for group in groups
        if len(setting.data.groups[group])
    }


def evaluate_fully(
    setting: Setting, engine: Engine, state: State, groups: tuple[str, ...] = GROUPS, most: int | None = None
) -> dict[str, Full]:
    """The same, also after 1 and after 5 passes of personalising, and with figures over classes."""
    counting = with_classes(setting, engine)
    return {
        group: _full(setting, counting, state, some(setting, group, most))
        for group in groups
        if len(setting.data.groups[group])
    }


def some(setting: Setting, group: str, most: int | None) -> np.ndarray:
    """Everybody of a group, or as many as are looked at, always the same ones."""
    people = setting.data.groups[group]
    if most is None or most >= len(people):
        return people
    chosen = keyed.choice(keyed.key(setting.seed, "watch", group), len(people), most).sort().values.numpy()
    few: np.ndarray = people[chosen]
    return few


def scores_of(setting: Setting, engine: Engine, state: State, who: np.ndarray) -> Scores:
    """Personalises and scores some clients."""
    return _scores(setting, engine.score(state, who), who)


def cut_short(work: Work, passes: int) -> Work:
    """Personalising that ends after so many passes, or so many steps where it is counted in these."""
    phases = (
        phase._replace(
            plan=phase.plan._replace(steps=passes) if phase.plan.steps else phase.plan._replace(epochs=passes)
        )
        for phase in work.phases
    )
    return work._replace(phases=tuple(phases))


def _full(setting: Setting, engine: Engine, state: State, who: np.ndarray) -> Full:
    scored, own = engine.score(state, who), setting.method.personalise
    found = {"before": scored.before, "after": scored.after}
    for passes in PASSES if own.phases else ():
        work = cut_short(own, passes)
        same = [phase.plan for phase in work.phases] == [phase.plan for phase in own.phases]
        found[str(passes)] = scored.after if same else engine.score(state, who, work).after
    steps = {when: _ratios(figures) for when, figures in found.items() if when not in ("before", "after")}
    f1 = {when: value for when, figures in found.items() if (value := f1_of(figures)) is not None}
    return Full(_scores(setting, scored, who), steps, f1)


def _scores(setting: Setting, scored: Scored, who: np.ndarray) -> Scores:
    return Scores(
        ids=setting.data.ids[who],
        before=_ratios(scored.before),
        after=_ratios(scored.after),
        weights={name: sums[:, 1].numpy() for name, sums in scored.after.items() if not is_class(name)},
    )


def _ratios(figures: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: per_client(sums) for name, sums in figures.items() if not is_class(name)}
