"""One budget of personalizing for all methods of a comparison, and what it costs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor import methods
from fedtailor.engines import factory
from fedtailor.errors import InputError
from fedtailor.evaluation.costs import CostMeter
from fedtailor.evaluation.evaluate import evaluate_final, truncate_routine
from fedtailor.training import from_config
from fedtailor.training.config import RunConfig
from fedtailor.training.overrides import read_comparison, read_run_config
from fedtailor.training.record.build import find_hparam_origins
from fedtailor.training.runner import start_run
from scenarios import toy_setting

ALL = tuple(methods.NAMES)
COMPOSITIONS = ("fsl+per-fedavg", "per+per-fedavg", "ds+fedmeta", "fsl+per+fedmeta")
OTHER_PAPER_RULES = {
    "per-fedavg": (5, 1),
    "fedmeta": (1, None),
    "fedmeta-per": (1, None),
    "fsl+per-fedavg": (5, 1),
    "per+per-fedavg": (5, 1),
    "ds+fedmeta": (1, None),
    "fsl+per+fedmeta": (1, None),
}
"""Epochs and steps of personalizing by the paper, where they are not 5 epochs."""
SMALL = ["data.clients=12", "hidden=8", "cohort=4", "threads=1", "rounds=2", "compile=false"]


def list_budgets(*words: str) -> dict[str, tuple[int, int | None]]:
    """Return the epochs and steps of personalizing of each variant of a comparison."""
    comparison = read_comparison([*words, "seeds=0", "baselines=false"])
    budgets = {}
    for config in comparison.make_run_configs():
        hparams = config.hparams
        budget = (hparams["finetune_epochs"], hparams["finetune_steps"])
        budgets[config.label or config.method] = budget
    return budgets


def test_all_methods_of_a_comparison_personalize_for_equally_many_epochs() -> None:
    budgets = list_budgets(*ALL, *COMPOSITIONS)
    assert set(budgets.values()) == {(5, None)}
    assert len(budgets) == len(ALL) + len(COMPOSITIONS)
    assert set(list_budgets(*ALL, "finetune=2").values()) == {(2, None)}


def test_a_single_run_has_the_budget_that_it_has_in_a_comparison() -> None:
    for name in (*ALL, *COMPOSITIONS):
        alone = read_run_config([f"method={name}"])
        (compared,) = read_comparison([name, "baselines=false", "seeds=0"]).make_run_configs()
        assert alone.hparams == compared.hparams
        assert read_run_config([f"method={name}", "finetune=3"]).hparams["finetune_epochs"] == 3


def test_each_method_may_have_its_papers_rule() -> None:
    expected = dict.fromkeys((*ALL, *COMPOSITIONS), (5, None)) | OTHER_PAPER_RULES
    assert list_budgets(*ALL, *COMPOSITIONS, "finetune=paper") == expected


def test_what_is_given_wins() -> None:
    words = ("fedavg", "per-fedavg", "per-fedavg@x", "fedmeta")
    assert list_budgets(*words, "finetune_epochs=2") == dict.fromkeys(words, (2, None))
    assert list_budgets(*words, "finetune_steps=7") == dict.fromkeys(words, (5, 7))
    assert list_budgets(*words, "finetune=3", "per-fedavg.finetune_steps=1") == {
        "fedavg": (3, None),
        "per-fedavg": (3, 1),
        "per-fedavg@x": (3, 1),
        "fedmeta": (3, None),
    }
    assert list_budgets(*words, "per-fedavg@x.finetune_epochs=4")["per-fedavg@x"] == (4, None)


def test_what_was_tuned_wins() -> None:
    comparison = read_comparison(["per-fedavg", "baselines=false"])
    config = comparison.make_run_config("per-fedavg", 0, hparams={"finetune_steps": 2})
    assert config.hparams["finetune_steps"] == 2
    config = comparison.make_run_config("per-fedavg", 0, hparams={"finetune_epochs": 2})
    assert (config.hparams["finetune_epochs"], config.hparams["finetune_steps"]) == (2, None)


@pytest.mark.parametrize("value", ["-1", "1.5", "authors", "none"])
def test_other_budgets_are_refused(value: str) -> None:
    with pytest.raises(InputError, match="finetune: "):
        read_comparison(["fedavg", f"finetune={value}"])


def find_origins(*words: str) -> dict[str, str]:
    """Return the origins of a run's hyper-parameters of personalizing."""
    config = read_run_config(list(words))
    hparams = from_config.resolve_hparams(config, from_config.load_dataset(config))
    origins = find_hparam_origins(config, hparams)
    return {
        name: origin
        for name, origin in origins.items()
        if name in ("finetune_epochs", "finetune_steps", "local_epochs", "local_steps")
    }


def test_the_record_says_where_the_budget_comes_from() -> None:
    by_default = {"finetune_epochs": "default", "finetune_steps": "default"}
    assert find_origins("method=per-fedavg") == by_default
    assert find_origins("method=per-fedavg", "finetune=paper") == {
        **by_default,
        "finetune_steps": "given",
    }
    assert find_origins("method=fedmeta", "finetune=2") == {
        **by_default,
        "finetune_epochs": "given",
    }
    assert find_origins("method=local") == {
        **by_default,
        "local_epochs": "run",
        "local_steps": "default",
    }
    assert find_origins("method=local", "local_epochs=9")["local_epochs"] == "given"


def count_personalize_steps(config: RunConfig, num_passes: int) -> np.ndarray:
    """Return the steps of each client's personalizing, cut to some passes."""
    data = from_config.load_dataset(config)
    context = from_config.build_context(config, data)
    routine = truncate_routine(context.method.personalize, num_passes)
    method = context.method._replace(client=routine)
    cut = toy_setting(method, context.task, data)
    return cut.count_steps(np.arange(data.clients.count))


@pytest.mark.parametrize("given", [[], ["finetune_steps=3"], ["finetune=paper"]], ids=str)
@pytest.mark.parametrize("num_passes", [1, 5])
def test_passes_are_epochs_over_a_clients_examples_for_every_method(
    given: list[str], num_passes: int
) -> None:
    data = from_config.load_dataset(read_run_config(SMALL))
    sizes = data.clients.splits["adapt"].compute_sizes()
    expected = num_passes * -(-sizes // 20)
    for name in (*ALL, *COMPOSITIONS):
        if name == "centralized":
            continue  # its view of the data has one more client, the pool
        config = read_run_config([*SMALL, *given, f"method={name}"])
        assert np.array_equal(count_personalize_steps(config, num_passes), expected), name


def test_scores_after_passes_are_those_of_a_run_with_as_many_epochs() -> None:
    scores: dict[str, Any] = {}
    for words in (["finetune=paper"], ["finetune=1"], ["finetune=5"]):
        config = read_run_config([*SMALL, "method=per-fedavg", "alpha=0.1", *words])
        context = from_config.build_context(config, from_config.load_dataset(config))
        engine = factory.make_engine(context, "vectorized")
        state = context.init_server_state()
        final = evaluate_final(context, engine, state, ("participating",))
        scores[words[0]] = final["participating"]
    one_step = scores["finetune=paper"]
    for num_passes in ("1", "5"):
        whole = scores[f"finetune={num_passes}"].scores.after
        assert np.array_equal(one_step.after_passes[num_passes]["loss"], whole["loss"])
    assert not np.array_equal(one_step.scores.after["loss"], one_step.after_passes["1"]["loss"])


def test_the_cost_of_personalizing_is_the_mean_over_all_clients_that_are_scored(
    tmp_path: Path,
) -> None:
    words = [*SMALL, "method=local", "rounds=9"]
    outcome = start_run(read_run_config(words), tmp_path / "run")
    record = outcome.record
    assert record.cost is not None
    epochs = record.hparams["local_epochs"]
    assert epochs == -(-9 * 4 // len(record.data.groups["train"])) + 5
    client_ids = [*record.data.groups["participating"], *record.data.groups["unseen"]]
    steps = [epochs * -(-record.data.train_sizes[client] // 20) for client in client_ids]
    gradients = record.cost.personalize_gradients
    assert gradients == pytest.approx(np.mean(steps), abs=0.051)
    assert np.mean(steps) > np.mean(steps[: len(record.data.groups["participating"])]) + 0.2 or (
        np.mean(steps) < np.mean(steps[: len(record.data.groups["participating"])]) - 0.2
    )


def test_trying_offered_layers_costs_a_personalization_each() -> None:
    costs = []
    for words in (["offer=3"], ["offer=0"]):
        config = read_run_config([*SMALL, "method=fedper", *words])
        context = from_config.build_context(config, from_config.load_dataset(config))
        meter = CostMeter(context)
        client_ids = np.arange(context.data.clients.count)
        costs.append(meter.compute_personalize_cost(client_ids))
    ratios = costs[0].gradients / costs[1].gradients
    is_training = np.isin(client_ids, context.data.groups["train"])
    assert np.allclose(ratios[is_training], 1)
    assert np.allclose(ratios[~is_training], 3)
    assert np.allclose(costs[0].flops, ratios * costs[1].flops)
