"""Scores of groups of clients, before and after personalising."""

import numpy as np

from fedtailor import keyed
from fedtailor.engines.base import Engine, Setting
from fedtailor.run.metrics import Scores, per_client
from fedtailor.types import State

GROUPS = ("local", "new")


def evaluate(
    setting: Setting, engine: Engine, state: State, groups: tuple[str, ...] = GROUPS, most: int | None = None
) -> dict[str, Scores]:
    """Personalises and scores the clients of the groups, at most so many of each; an empty group is left out."""
    return {
        group: scores_of(setting, engine, state, _some(setting, group, most))
        for group in groups
        if len(setting.data.groups[group])
    }


def _some(setting: Setting, group: str, most: int | None) -> np.ndarray:
    """Everybody, or as many as are looked at, always the same ones."""
    people = setting.data.groups[group]
    if most is None or most >= len(people):
        return people
    chosen = keyed.choice(keyed.key(setting.seed, "watch", group), len(people), most).sort().values.numpy()
    some: np.ndarray = people[chosen]
    return some


def scores_of(setting: Setting, engine: Engine, state: State, who: np.ndarray) -> Scores:
    """Personalises and scores some clients."""
    scored = engine.score(state, who)
    return Scores(
        ids=setting.data.ids[who],
        before={name: per_client(sums) for name, sums in scored.before.items()},
        after={name: per_client(sums) for name, sums in scored.after.items()},
        weights={name: sums[:, 1].numpy() for name, sums in scored.after.items()},
    )
