"""What personalizing takes in the runs of a table, in one sentence, from their hyper-parameters."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

Run = tuple[str, Mapping[str, Any]]
"""The name of a run's method in a table, with the hyper-parameters of its record."""


def describe_finetune_budgets(runs: Iterable[Run]) -> str:
    """Return a sentence on what personalizing takes in the runs of a table.

    What most methods have in common comes first; methods with a rule of their own are named:
    "Personalizing: 5 epochs for every method; local trains 22."

    Args:
        runs: The runs, of all seeds; "" is returned if there are none.
    """
    budgets: dict[str, list[str]] = {}
    trainings: dict[str, list[str]] = {}
    for name, hparams in runs:
        training = _get_training_alone(hparams)
        table = trainings if training else budgets
        budget = training or _get_finetuning(hparams)
        entries = table.setdefault(name, [])
        if budget not in entries:
            entries.append(budget)
    common = _find_most_common(budgets)
    parts = _list_budgets(budgets, common)
    for names, budget in _group_names(trainings).items():
        verb = "train" if " and " in names else "trains"
        amount = budget
        if common.endswith(" epochs"):
            amount = budget.replace(" epochs", "")
        parts.append(f"{names} {verb} {amount}")
    return f"Personalizing: {'; '.join(parts)}." if parts else ""


def _get_training_alone(hparams: Mapping[str, Any]) -> str:
    """Return the budget of a method that trains alone when it is personalized, "" for others."""
    if hparams.get("when") != "end" or "local_epochs" not in hparams:
        return ""
    if hparams.get("local_steps") is not None:
        return _count(hparams["local_steps"], "step")
    return _count(hparams["local_epochs"], "epoch")


def _get_finetuning(hparams: Mapping[str, Any]) -> str:
    """Return the budget of fine-tuning; steps take precedence over epochs."""
    if hparams.get("finetune_steps") is not None:
        return _count(hparams["finetune_steps"], "step")
    return _count(hparams["finetune_epochs"], "epoch")


def _count(number: int, unit: str) -> str:
    if number == 0:
        return "none"
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def _find_most_common(budgets: Mapping[str, list[str]]) -> str:
    """Return the budget that most methods have, the first of several; "" without methods."""
    counts = Counter(" or ".join(entries) for entries in budgets.values())
    return max(counts, key=lambda budget: counts[budget], default="")


def _list_budgets(budgets: Mapping[str, list[str]], common: str) -> list[str]:
    """Return phrases: the common budget, and the names of those that have another one."""
    if not budgets:
        return []
    others = {name: entries for name, entries in budgets.items() if " or ".join(entries) != common}
    if not others:
        return [f"{common} for every method"]
    phrases = [f"{names} {budget}" for names, budget in _group_names(others).items()]
    return [f"{common}, but {phrases[0]}", *phrases[1:]]


def _group_names(budgets: Mapping[str, list[str]]) -> dict[str, str]:
    """Return budgets by the names that have them, joined: `fedmeta and afml`."""
    names_by_budget: dict[str, list[str]] = {}
    for name, entries in budgets.items():
        names_by_budget.setdefault(" or ".join(entries), []).append(name)
    grouped = {}
    for budget, names in names_by_budget.items():
        *first, last = names
        grouped[f"{', '.join(first)} and {last}" if first else last] = budget
    return grouped
