"""The configurations that every method's contract is tested on: each method, its variants, and
compositions.
"""

from typing import Any

import pytest

Row = tuple[str, dict[str, Any]]

ROWS: list[Row] = [
    ("local", {"when": "sampled"}),
    ("local", {"when": "end", "local_epochs": 3}),
    ("centralized", {"epochs": 1}),
    ("fedavg", {"epochs": 2}),
    ("fedavg", {"steps": 3, "weigh": "clients"}),
    ("fedavg", {"optimizer": "adam", "lr": 0.01, "server_optimizer": "adam", "server_lr": 0.05}),
    ("fedavg", {"momentum": 0.9, "server_optimizer": "yogi", "server_lr": 0.05}),
    (
        "fedavg",
        {"server_momentum": 0.9, "weight_decay": 0.01, "finetune_steps": 3, "finetune_batch": 4},
    ),
    ("fedprox", {"lam": 0.5, "epochs": 2}),
    ("scaffold", {"epochs": 2}),
    ("scaffold", {"steps": 3, "server_lr": 0.5, "weight_decay": 0.01, "weigh": "examples"}),
    ("feddyn", {"epochs": 2, "momentum": 0.9}),
    ("feddyn", {"optimizer": "adam", "lr": 0.01, "weigh": "examples"}),
    ("pfedme", {"inner_steps": 2, "momentum": 0.9, "weight_decay": 0.01}),
    ("pfedme", {"optimizer": "adam", "lr": 0.01, "beta": 0.5, "inner_steps": 1}),
    ("ditto", {"lam": 0.5}),
    ("ditto", {"steps": 3, "personal_steps": 2, "momentum": 0.9, "weight_decay": 0.01}),
    ("apfl", {}),
    ("apfl", {"optimizer": "adam", "lr": 0.01, "adapt": False, "mixing": 0.2}),
    ("fedrep", {"head_epochs": 2}),
    ("fedrep", {"optimizer": "adam", "lr": 0.01, "head_epochs": 1}),
    ("fedper", {"epochs": 2}),
    ("fedper", {"offer": 3}),
    ("fedper", {"average_heads": True}),
    ("lg-fedavg", {"server_optimizer": "adam", "server_lr": 0.05}),
    ("reptile", {"epochs": 2, "decay": "linear", "decay_rounds": 4}),
    ("per-fedavg", {"variant": "exact", "hessian_batch": 3}),
    ("per-fedavg", {"variant": "fo", "steps": 3}),
    ("per-fedavg", {"variant": "hf", "optimizer": "adam", "lr": 0.01}),
    ("fedmeta", {"inner": "maml"}),
    ("fedmeta", {"inner": "maml", "order": 1, "inner_steps": 2, "weigh": "clients"}),
    ("fedmeta", {"inner": "meta-sgd"}),
    ("fedmeta", {"inner": "maml", "sets": "whole", "order": 1}),
    (
        "fedmeta",
        {"inner": "meta-sgd", "sets": "whole", "optimizer": "adam", "lr": 0.01, "inner_steps": 2},
    ),
    ("fedmeta-per", {"inner": "maml", "offer": 2}),
    ("fedmeta-per", {"inner": "meta-sgd"}),
    ("fsl", {"learn_epochs": 2}),
    ("fsl-p", {}),
    ("ds", {}),
    ("fedsim", {"decay_rounds": 5}),
    ("fedsim", {"product": "exact", "decay": "cosine", "decay_rounds": 5}),
    ("fedsim", {"at": "server", "product": "exact"}),
    ("fedsim", {"at": "mean"}),
    ("fedsim", {"first": "server", "server_batch": 5}),
    ("fedsim", {"first": "scaled", "lam": 0.3}),
    ("fedsim", {"lam": 0.0}),
    ("fedsim", {"c": 0.0}),
    ("afml", {}),
    ("afml", {"sets": "whole", "steps": 2, "momentum": 0.9, "weight_decay": 0.01, "sigma": 0.1}),
    ("fsl+fedsim", {"weigh": "examples"}),
    ("fsl+scaffold", {}),
    ("fsl+per-fedavg", {"variant": "fo"}),
    ("fsl+afml", {}),
    ("fsl-p+fedsim", {"at": "mean"}),
    ("per+fedsim", {}),
    ("per+fedsim", {"at": "mean", "product": "exact"}),
    ("per+scaffold", {}),
    ("per+feddyn", {}),
    ("per+ditto", {"personal": "all-but-last", "weigh": "examples"}),
    ("per+per-fedavg", {"variant": "exact"}),
    ("fsl+per+fedmeta", {"inner": "meta-sgd"}),
    ("fsl+per+fedsim", {"offer": 4}),
    ("ds+fedprox", {}),
    ("ds+fsl+per+fedavg", {}),
]


def as_params(rows: list[Row], default: set[str] | None = None) -> list[Any]:
    """Return rows as test parameters with readable names; those that are not in `default` are
    marked slow.
    """
    params = []
    for name, hparams in rows:
        row_id = "-".join([name, *(f"{key}={value}" for key, value in hparams.items())])
        is_slow = default is not None and row_id not in default
        params.append(
            pytest.param(name, hparams, id=row_id, marks=pytest.mark.slow if is_slow else ())
        )
    return params


def select_representatives(rows: list[Row]) -> set[str]:
    """Return the ids of the first row of each method and of the compositions of three parts or
    more.
    """
    first_of = dict.fromkeys(name for name, _ in rows if name.count("+") != 1)
    ids = [(row[0], param.id) for row, param in zip(rows, as_params(rows), strict=True)]
    return {next(row_id for name, row_id in ids if name == wanted) for wanted in first_of}
