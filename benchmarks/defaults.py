"""Whether a method's default hyper-parameters are weaker than their neighbors.

    python benchmarks/defaults.py [METHOD ...]     train what has not been trained, then print
    python benchmarks/defaults.py print            print the tables of what has been trained
    python benchmarks/defaults.py publish          put them into README.md

Every method is trained with its defaults, with `lr` divided and multiplied by 3, and with its own
most important hyper-parameters a notch up and down: on three small tasks, with five seeds that draw
clients, first weights, cohorts and batches, for 50 rounds of 10 clients, a small MLP, 5 epochs of
personalizing. A score is the mean accuracy over clients in percent, after personalizing: that of
the validation clients, who never train, and beside it that of the participating ones, for methods
that keep something at a client. Neighbors are compared with the default seed by seed.

Runs that have been trained are in results/defaults.json and are not trained again, so it can be
interrupted.
"""

import statistics
import sys
from collections.abc import Iterator
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from fedtailor.core import trees
from fedtailor.data import FederatedDataset, load
from fedtailor.data.builtin.arrays import from_arrays
from fedtailor.data.builtin.digits import load_digits
from fedtailor.data.partition import dirichlet
from fedtailor.engines import factory
from fedtailor.evaluation.evaluate import evaluate
from fedtailor.training.config import get_default_hparams
from fedtailor.training.context import get_cohort_size, prepare_context
from fedtailor.training.loop import run_rounds
from fedtailor.training.pretraining import PretrainingConfig, run_pretraining
from results import FOLDER, in_words, machine, save
from results import load as load_results

NAME = "defaults"
BEGIN = "<!-- defaults: made by benchmarks/defaults.py -->"
END = "<!-- end of defaults -->"
ROUNDS = 50
COHORT = 10
SEEDS = (0, 1, 2, 3, 4)
FINETUNE = 5
GROUPS = ("validation", "participating")
SPLIT: dict[str, Any] = {"validation_clients": 0.4, "unseen_clients": 0.0}

HParams = dict[str, Any]

LR: list[HParams] = [{"lr": 0.033}, {"lr": 0.3}]
FINETUNE_LR: list[HParams] = [{"finetune_lr": 0.033}, {"finetune_lr": 0.3}]
ALPHA: list[HParams] = [{"alpha": 0.003}, {"alpha": 0.03}]
GAMMA: list[HParams] = [{"gamma": 0.3}, {"gamma": 3.0}]

NEIGHBORS: dict[str, list[HParams]] = {
    "local": [*LR, {"local_epochs": 50}],
    "centralized": LR,
    "fedavg": [*LR, *FINETUNE_LR, {"weigh": "clients"}],
    "fedprox": [*LR, {"lam": 0.01}, {"lam": 1.0}],
    "scaffold": LR + FINETUNE_LR,
    "feddyn": [*LR, {"alpha": 0.03}, {"alpha": 0.3}],
    "pfedme": [*LR, {"inner_lr": 0.02}, {"inner_lr": 0.1}, {"lam": 5.0}, {"lam": 30.0}],
    "ditto": [*LR, {"lam": 0.3}, {"lam": 3.0}, {"finetune_lr": 0.033}],
    "apfl": [*LR, {"mixing": 0.25}, {"mixing": 0.75}, {"finetune_lr": 0.3}],
    "fedrep": [*LR, {"head_epochs": 2}, {"head_epochs": 10}],
    "fedper": LR + FINETUNE_LR,
    "lg-fedavg": LR + FINETUNE_LR,
    "reptile": [*LR, {"epsilon": 0.25}, {"epsilon": 1.0}],
    "per-fedavg": [*LR, *ALPHA, {"finetune_steps": 1}],
    "fedmeta": [*LR, *ALPHA, {"finetune_epochs": 1}],
    "fedmeta-per": LR + ALPHA,
    "fsl": LR + GAMMA,
    "fsl-p": LR + GAMMA,
    "ds": LR + FINETUNE_LR,
    "fedsim": [*LR, {"lam": 0.3}, {"lam": 3.0}],
    "afml": [{"lr": 0.1}, {"lr": 0.9}, {"eta": 0.17}, {"eta": 1.5}],
}
"""What is tried of each method besides its defaults."""


def make_label_digits(seed: int) -> FederatedDataset:
    """Return the digits of the demo: two labels a client."""
    return load("digits", seed=seed, **SPLIT)


def make_dirichlet_digits(seed: int) -> FederatedDataset:
    """Return the digits divided by Dirichlet(0.1), with a twentieth of them at the server."""
    x, y = load_digits()
    owners = dirichlet(y, 50, np.random.default_rng(seed), alpha=0.1)
    return from_arrays(
        x, y, owners, name="digits-dirichlet", server=0.05, seed=seed, scale=1 / 16, **SPLIT
    )


def make_synthetic(seed: int) -> FederatedDataset:
    """Return Synthetic(1, 1) with at most 150 examples a client."""
    return load("synthetic", clients=50, most=150, seed=seed, **SPLIT)


TASKS = {
    "labels": make_label_digits,
    "dirichlet": make_dirichlet_digits,
    "synthetic": make_synthetic,
}


def make_model(num_inputs: int) -> nn.Module:
    """Return a small MLP for ten classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(num_inputs, 64), nn.ReLU(), nn.Linear(64, 10))


def score(method: str, given: HParams, data: FederatedDataset, seed: int) -> dict[str, list[float]]:
    """Train a method, and return the mean accuracy before and after personalizing by group."""
    num_inputs = int(np.prod(data.example_spec.shape))
    context = prepare_context(
        method,
        partial(make_model, num_inputs),
        data,
        rounds=ROUNDS,
        cohort=COHORT,
        seed=seed,
        **get_default_hparams(method, FINETUNE, **given),
    )
    engine = factory.make_engine(context, "vectorized", compile=False)
    state = context.init_server_state(run_pretraining(context, PretrainingConfig()))
    if context.method.client.phases:
        rounds = run_rounds(context, engine, state, get_cohort_size(context, COHORT))
        for _ in range(ROUNDS):
            state = next(rounds).state
    client_state = context.method.init_client_state(state)
    groups = GROUPS if trees.leaves(client_state) else GROUPS[:1]
    scores = evaluate(context, engine, state, groups)
    found = {}
    for group in groups:
        stages = (scores[group].before, scores[group].after)
        found[group] = [round(100 * float(np.nanmean(stage["accuracy"])), 3) for stage in stages]
    return found


def name_point(given: HParams) -> str:
    """Return the name of a choice of hyper-parameters."""
    return " ".join(f"{key}={value}" for key, value in given.items()) or "default"


def name_default(method: str, given: HParams) -> str:
    """Return what a neighbor is a neighbor of: `lr=0.1`."""
    defaults = get_default_hparams(method, FINETUNE)
    return " ".join(f"{key}={defaults[key]}" for key in given)


def train(names: list[str]) -> None:
    """Train what has not been trained, and save after every run."""
    torch.set_num_threads(1)
    found = load_results(NAME) or {"machine": machine(), "scores": {}}
    scores = found["scores"]
    for seed, method, task, given in iter_runs(names):
        by_task = scores.setdefault(method, {task: {} for task in TASKS})
        by_seed = by_task[task].setdefault(name_point(given), {})
        if str(seed) not in by_seed:
            by_seed[str(seed)] = score(method, given, TASKS[task](seed), seed)
            save(NAME, found)


def iter_runs(names: list[str]) -> Iterator[tuple[int, str, str, HParams]]:
    """Yield the seed, method, task and choice of each run, seed by seed."""
    for seed in SEEDS:
        for method in names:
            for task in TASKS:
                for given in [{}, *NEIGHBORS[method]]:
                    yield seed, method, task, given


def make_rows(scores: dict[str, Any], group: str) -> list[list[str]]:
    """Return the default's score and the leads of its neighbors over it, on a group of clients."""
    rows = []
    for method in NEIGHBORS:
        by_task = scores.get(method, {})
        if not all(has_group(by_task.get(task, {}).get("default", {}), group) for task in TASKS):
            continue
        rows.append([method, "default", *(format_score(by_task[task], group) for task in TASKS)])
        for given in NEIGHBORS[method]:
            name = name_point(given)
            cells = [format_lead(by_task[task], name, group) for task in TASKS]
            if any(cells):
                rows.append(["", f"{name}, not {name_default(method, given)}", *cells])
    return rows


def has_group(by_seed: dict[str, Any], group: str) -> bool:
    """Return whether there are scores of a group of clients."""
    return bool(by_seed) and all(group in entry for entry in by_seed.values())


def format_score(by_point: dict[str, Any], group: str) -> str:
    """Return the mean of the default's scores, their deviation, and the number of seeds."""
    values = [entry[group][1] for entry in by_point["default"].values()]
    mean = statistics.mean(values)
    if len(values) == 1:
        return f"{mean:.1f} (1)"
    return f"{mean:.1f} ± {statistics.stdev(values):.1f} ({len(values)})"


def format_lead(by_point: dict[str, Any], name: str, group: str) -> str:
    """Return the mean of a neighbor's leads over the default, seed by seed, and its error."""
    default = by_point["default"]
    point = by_point.get(name, {})
    leads = [point[seed][group][1] - default[seed][group][1] for seed in point if seed in default]
    if not leads:
        return ""
    mean = statistics.mean(leads)
    if len(leads) == 1:
        return f"{mean:+.1f} (1)"
    return f"{mean:+.1f} ± {statistics.stdev(leads) / sqrt(len(leads)):.1f} ({len(leads)})"


def publish(found: dict[str, Any]) -> None:
    """Put the tables between markers on the page of benchmarks."""
    parts = [f"Measured on {in_words(found['machine'])}"]
    for group in GROUPS:
        lines = [f"| {group} clients | choice | {' | '.join(TASKS)} |", "|---|---|---:|---:|---:|"]
        lines += [f"| {' | '.join(row)} |" for row in make_rows(found["scores"], group)]
        parts.append("\n".join(lines))
    page = FOLDER.parent / "README.md"
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    content = "\n\n".join(parts)
    page.write_text(f"{before}{begin}\n\n{content}\n\n{end}{after}")


def main(names: list[str]) -> None:
    """Train, print and publish."""
    if names not in (["print"], ["publish"]):
        train(names or list(NEIGHBORS))
    found = load_results(NAME)
    if found is None:
        return
    if names == ["publish"]:
        publish(found)
        return
    console = Console(width=110)
    print(in_words(found["machine"]))
    for group in GROUPS:
        table = Table(f"{group} clients", "choice", *TASKS)
        for row in make_rows(found["scores"], group):
            table.add_row(*row)
        console.print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
