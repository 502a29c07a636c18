"""Scores of groups of clients, before and after personalising."""

import numpy as np

from fedtailor.engines.base import Engine, Setting
from fedtailor.run.metrics import Scores, per_client
from fedtailor.types import State

GROUPS = ("local", "new")


def evaluate(setting: Setting, engine: Engine, state: State, groups: tuple[str, ...] = GROUPS) -> dict[str, Scores]:
    """Personalises and scores every client of the groups; a group with nobody in it is left out."""
    return {
        group: scores_of(setting, engine, state, setting.data.groups[group])
        for group in groups
        if len(setting.data.groups[group])
    }


def scores_of(setting: Setting, engine: Engine, state: State, who: np.ndarray) -> Scores:
    """Personalises and scores some clients."""
    scored = engine.score(state, who)
    return Scores(
        ids=setting.data.ids[who],
        before={name: per_client(sums) for name, sums in scored.before.items()},
        after={name: per_client(sums) for name, sums in scored.after.items()},
        weights={name: sums[:, 1].numpy() for name, sums in scored.after.items()},
    )
