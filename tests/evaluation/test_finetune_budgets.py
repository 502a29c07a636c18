from typing import Any

import pytest

from fedtailor.evaluation.finetune_budgets import describe_finetune_budgets
from fedtailor.training import from_config
from fedtailor.training.overrides import read_comparison


def tuned(epochs: int = 5, steps: int | None = None) -> dict[str, Any]:
    return {"finetune_epochs": epochs, "finetune_steps": steps}


def alone(epochs: int | None = None, steps: int | None = None) -> dict[str, Any]:
    return {**tuned(), "when": "end", "local_epochs": epochs, "local_steps": steps}


@pytest.mark.parametrize(
    ("runs", "sentence"),
    [
        ([], ""),
        ([("fedavg", tuned())], "Personalizing: 5 epochs for every method."),
        (
            [("local", alone(22)), ("fedavg", tuned()), ("fedsim", tuned())],
            "Personalizing: 5 epochs for every method; local trains 22.",
        ),
        (
            [("fedavg", tuned(1)), ("local", alone(steps=170))],
            "Personalizing: 1 epoch for every method; local trains 170 steps.",
        ),
        (
            [("per-fedavg", tuned(steps=1)), ("fedavg", tuned()), ("ditto", tuned())],
            "Personalizing: 5 epochs, but per-fedavg 1 step.",
        ),
        (
            [
                ("local", alone(30)),
                ("fedavg", tuned()),
                ("scaffold", tuned()),
                ("apfl", tuned()),
                ("fedmeta", tuned(1)),
                ("per-fedavg", tuned(steps=10)),
                ("fedmeta-per", tuned(1)),
            ],
            "Personalizing: 5 epochs, but fedmeta and fedmeta-per 1 epoch; per-fedavg 10 steps; "
            "local trains 30.",
        ),
        ([("fedavg", tuned(0))], "Personalizing: none for every method."),
        ([("local", alone(22))], "Personalizing: local trains 22 epochs."),
        (
            [("local", alone(22)), ("local", alone(24)), ("fedavg", tuned())] * 2,
            "Personalizing: 5 epochs for every method; local trains 22 or 24.",
        ),
        (
            [("local", {**alone(22), "when": "sampled"}), ("fedavg", tuned())],
            "Personalizing: 5 epochs for every method.",
        ),
    ],
)
def test_a_rule_of_its_own_is_named(runs: list[Any], sentence: str) -> None:
    assert describe_finetune_budgets(runs) == sentence


def describe_comparison(*words: str) -> str:
    """Return the sentence on the runs of a comparison, resolved as their records have them."""
    comparison = read_comparison([*words, "seeds=0"])
    runs = []
    for config in comparison.make_run_configs():
        data = from_config.load_dataset(config)
        runs.append((config.label or config.method, from_config.resolve_hparams(config, data)))
    return describe_finetune_budgets(runs)


def test_it_is_true_of_real_comparisons() -> None:
    compared = ("local", "fedavg", "fedsim", "afml", "per-fedavg", "fedmeta", "fedmeta-per")
    words = (*compared, "rounds=50", "cohort=10")
    assert describe_comparison(*words) == (
        "Personalizing: 5 epochs for every method; local trains 20."
    )
    assert describe_comparison(*words, "finetune=paper") == (
        "Personalizing: 5 epochs, but per-fedavg 1 step; fedmeta and fedmeta-per 1 epoch; "
        "local trains 20."
    )
