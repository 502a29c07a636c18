"""Records of runs that never happened, for the report's tests."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

Record = dict[str, Any]
Scores = Sequence[float | None]


def record(
    name: str = "fedsim", seed: int = 1, *, clients: int = 20, rounds: int = 10, skill: float = 0.7
) -> Record:
    """A finished run on classes; three quarters of the clients are local, the rest new, but for two of validation."""
    draw = np.random.default_rng([seed, clients, *name.encode()])
    local = clients * 3 // 4
    groups = {
        "train": list(range(local)),
        "participating": list(range(local)),
        "validation": [local, local + 1],
        "unseen": list(range(local + 2, clients)),
    }
    ids = [f"client-{number}" for number in range(clients)]
    labels = draw.multinomial(60, draw.dirichlet(np.full(10, 0.3), clients)).tolist()
    final = {
        group: _scores([ids[c] for c in groups[group]], skill, draw)
        for group in ("participating", "unseen")
    }
    entries = [_round(number, rounds, skill, draw) for number in range(1, rounds + 1)]
    return {
        "format": 1,
        "status": "finished",
        "name": name,
        "config": _spec(name, seed, rounds),
        "command": f"fedtailor run method={name} data=digits rounds={rounds} seed={seed} out=runs/{name}-{seed}",
        "versions": {
            "fedtailor": "0.1.0",
            "python": "3.11.7",
            "torch": "2.13.0+cpu",
            "numpy": "2.4.6",
            "platform": "Linux-6.1-x86_64",
        },
        "machine": "A processor",
        "commit": "0123abcd",
        "choices": {
            "engine": "vectorized",
            "chunk": 256,
            "compile": False,
            "precision": "float32",
            "notes": [],
        },
        "metric": {"name": "accuracy", "higher_is_better": True},
        "data": {
            "name": "digits",
            "classes": 10,
            "server_examples": 90,
            "overlap": "",
            "clients": ids,
            "groups": groups,
            "train_sizes": draw.integers(20, 120, clients).tolist(),
            "test_sizes": draw.integers(5, 30, clients).tolist(),
            "labels": labels,
            "server_labels": [9] * 10,
        },
        "rounds": entries,
        "scores": final,
        "cost": {
            "bytes_down": sum(entry["bytes_down"] for entry in entries),
            "bytes_up": sum(entry["bytes_up"] for entry in entries),
            "steps": sum(entry["steps"] for entry in entries),
            "seconds": 0.2 * rounds + 3 * skill,
            "scoring_seconds": 0.5,
        },
    }


def comparison(
    skills: dict[str, float], seeds: tuple[int, ...] = (1, 2, 3), **options: Any
) -> list[Record]:
    """A record for each method and seed."""
    return [
        record(name, seed, skill=skill, **options)
        for name, skill in skills.items()
        for seed in seeds
    ]


def counted(made: Record, flops: float = 2e9) -> Record:
    """The same run with everything that is counted and summed up: work, passes of personalizing, windows and pace."""
    changed = copy.deepcopy(made)
    work = {
        "gradients": 100.0,
        "flops": flops,
        "server_gradients": 10.0,
        "server_flops": flops / 10,
    }
    for entry in changed["rounds"]:
        entry |= work
    changed["cost"] |= {key: value * len(changed["rounds"]) for key, value in work.items()}
    for found in changed["scores"].values():
        found["after_passes"] = {
            step: _between(found, share) for step, share in (("1", 0.5), ("5", 0.9))
        }
    means = {
        group: {"after": {"accuracy": _mean(found) - 0.01}}
        for group, found in changed["scores"].items()
    }
    figures = {
        "acc_micro": 0.71,
        "acc_macro": 0.7,
        "std": 0.1,
        "worst_tenth": 0.5,
        "loss": 0.9,
        "f1_macro": 0.65,
    }
    return changed | {
        "final_window": {"eval_points": [10], "mean": means},
        "summary": {group: {"before": figures, "after": figures} for group in changed["scores"]},
        "convergence": {
            group: {"after": {"T_0.5": 6, "rise_time": 4.0}} for group in changed["scores"]
        },
    }


def _mean(scores: Record) -> float:
    return float(np.nanmean(np.array(scores["after"]["accuracy"], dtype=float)))


def diverged(made: Record) -> Record:
    """The same run with a model whose loss is not finite for its first local client."""
    changed = copy.deepcopy(made)
    for stage in ("before", "after"):
        changed["scores"]["participating"][stage]["loss"][0] = None
    return changed


def unfinished(made: Record, rounds: int, status: str = "running") -> Record:
    """The same run after a few rounds."""
    changed = copy.deepcopy(made)
    return changed | {"status": status, "scores": None, "rounds": changed["rounds"][:rounds]}


def regression(made: Record) -> Record:
    """The same run with a mean absolute error in place of the accuracy, and without labels."""
    changed = copy.deepcopy(made)
    changed["metric"] = {"name": "mae", "higher_is_better": False}
    changed["data"] |= {"classes": None, "labels": None, "server_labels": None}
    entries = [
        scores
        for entry in changed["rounds"]
        if entry["scores"]
        for scores in entry["scores"].values()
    ]
    for found in [*entries, *changed["scores"].values()]:
        for stage in ("before", "after"):
            found[stage]["mae"] = found[stage].pop("accuracy")
    return changed


def with_scores(made: Record, group: str, before: Scores, after: Scores) -> Record:
    """The same run with these clients' headline figures in a group."""
    changed = copy.deepcopy(made)
    figure = made["metric"]["name"]
    changed["scores"][group] = {
        "ids": [f"{group}-{number}" for number in range(len(after))],
        "before": {"loss": list(before), figure: list(before)},
        "after": {"loss": list(after), figure: list(after)},
        "weights": [0 if value is None else 10 for value in after],
    }
    return changed


def _spec(name: str, seed: int, rounds: int) -> Record:
    hyper = {"lr": 0.1, "batch": 10, "epochs": 2, "server_lr": 1.0}
    return {
        "method": name,
        "hparams": hyper | ({"lam": 0.1, "beta": 0.5} if name == "fedsim" else {}),
        "data": "digits",
        "data_options": {"seed": seed, "alpha": 0.3},
        "model": {"name": "mlp", "hidden": [64]},
        "rounds": rounds,
        "cohort": 10,
        "seed": seed,
        "engine": "vectorized",
        "device": "cpu",
    }


def _scores(ids: list[str], skill: float, draw: np.random.Generator) -> Record:
    before = np.clip(draw.normal(skill, 0.1, len(ids)), 0, 1)
    after = np.clip(before + draw.normal(0.08, 0.05, len(ids)), 0, 1)
    figures = [
        {"loss": (1.5 - values).tolist(), "accuracy": values.tolist()} for values in (before, after)
    ]
    return {"ids": ids, "before": figures[0], "after": figures[1], "weights": [20] * len(ids)}


def _between(scores: Record, share: float) -> Record:
    return {
        name: [
            (1 - share) * one + share * other
            for one, other in zip(before, scores["after"][name], strict=True)
        ]
        for name, before in scores["before"].items()
    }


def _round(number: int, of: int, skill: float, draw: np.random.Generator) -> Record:
    level = skill * (1 - 0.8 * np.exp(-4 * number / of))
    groups = {
        group: level - place / 50 + draw.normal(0, 0.01)
        for place, group in enumerate(("participating", "validation", "unseen"))
    }
    scores = {
        group: {
            stage: {"loss": 1.5 - value - more, "accuracy": value + more}
            for stage, more in _GAINS.items()
        }
        for group, value in groups.items()
    }
    traffic = {"bytes_down": 190_000, "bytes_up": 180_000, "steps": 120, "seconds": 0.2}
    return {"round": number, **traffic, "scores": scores if number % 2 == 0 else None}


_GAINS = {"before": 0.0, "after": 0.08}
