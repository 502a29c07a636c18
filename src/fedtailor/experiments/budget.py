"""Equal budgets: the rounds of each method that cost as many gradients or bytes as FedAvg's.

The cost of a round is its mean over the clients that may be drawn: gradient evaluations of the
clients (not of the server), or bytes down and up. A method without such a cost keeps its rounds,
and every method gets at least one. Rounds are decided once for runs that differ in their seeds
alone, by the data of the first of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fedtailor.data.dataset import FederatedDataset
from fedtailor.evaluation.costs import make_cost_meter
from fedtailor.training import from_config
from fedtailor.training.config import ComparisonConfig, RunConfig, parse_method
from fedtailor.training.context import get_cohort_size

REFERENCE_METHOD = "fedavg"
"""The method whose rounds set the budget."""
UNITS = {"gradients": "client gradients", "bytes": "bytes"}


class BudgetedRuns(NamedTuple):
    """Runs with the rounds that their budget allows, and a message with these numbers.

    The message is empty if the budget is in rounds.
    """

    configs: list[RunConfig]
    message: str


def apply_budget(comparison: ComparisonConfig, configs: Sequence[RunConfig]) -> BudgetedRuns:
    """Return the runs of a comparison with equal budgets."""
    if comparison.budget == "rounds":
        return BudgetedRuns(list(configs), "")
    data = from_config.load_dataset(configs[0])
    reference_variant = _choose_reference(comparison)
    reference_config = comparison.make_run_config(reference_variant, comparison.seeds[0])
    reference_cost = compute_cost_per_round(reference_config, data)
    rounds_by_config: dict[str, int] = {}
    budgeted_configs = []
    for config in configs:
        key = repr(config.without_seeds())
        if key not in rounds_by_config:
            cost = compute_cost_per_round(config, data)
            rounds_by_config[key] = _compute_rounds(config.rounds, reference_cost, cost)
        changes = {
            "rounds": rounds_by_config[key],
            "evaluate_every": comparison.evaluate_every,
        }
        budgeted_configs.append(config.model_copy(update=changes).resolve())
    rounds_by_name = dict.fromkeys(
        f"{config.label or config.method} {config.rounds}" for config in budgeted_configs
    )
    message = (
        f"As many {UNITS[comparison.budget]} for all methods as {comparison.rounds} rounds of "
        f"{reference_variant} take, in rounds: {', '.join(rounds_by_name)}."
    )
    if comparison.patience is not None:
        message += f" With patience={comparison.patience} a run may stop earlier and take less."
    return BudgetedRuns(budgeted_configs, message)


def _choose_reference(comparison: ComparisonConfig) -> str:
    """Return FedAvg, or the first of its variants if it is compared only under labels."""
    variants = [
        variant for variant in comparison.methods if parse_method(variant) == REFERENCE_METHOD
    ]
    if not variants or REFERENCE_METHOD in variants:
        return REFERENCE_METHOD
    return variants[0]


def _compute_rounds(reference_rounds: int, reference_cost: float, cost: float) -> int:
    if not cost:
        return reference_rounds
    return max(1, round(reference_rounds * reference_cost / cost))


def compute_cost_per_round(config: RunConfig, data: FederatedDataset) -> float:
    """Return the mean cost of a round, in the unit of the budget."""
    context = from_config.build_context(config, data)
    if not context.method.client.phases:
        return 0.0
    meter = make_cost_meter(context)
    cost_per_client = float(meter.bytes_per_client)
    if config.budget != "bytes":
        client_cost = meter.compute_client_cost(context.data.groups["train"])
        cost_per_client = float(client_cost.gradients.mean())
    return get_cohort_size(context, config.cohort) * cost_per_client
