"""Equal budgets: how many rounds each method gets for as many gradients, or as many bytes, as FedAvg takes.

What a round costs is what it costs on average over the clients that may be drawn: gradient evaluations of the clients
(not of the server), or bytes down and up. A method that costs nothing of the kind keeps the rounds as they are, and
everybody gets at least one.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fedtailor.data.dataset import FederatedDataset
from fedtailor.evaluation.costs import CostMeter
from fedtailor.training import build
from fedtailor.training.config import ComparisonConfig, RunConfig
from fedtailor.training.prepare import get_cohort_size

REFERENCE_METHOD = "fedavg"
"""Whose cost of all rounds is everybody's budget."""


class BudgetedRuns(NamedTuple):
    """Runs with the rounds that they can afford, and a line that says so, unless rounds themselves are the budget."""

    configs: list[RunConfig]
    message: str


def apply_budget(comparison: ComparisonConfig, configs: Sequence[RunConfig]) -> BudgetedRuns:
    """The runs of a comparison with equal budgets."""
    if comparison.budget == "rounds":
        return BudgetedRuns(list(configs), "")
    data = build.load_dataset(configs[0])
    fedavg_variants = [
        variant for variant in comparison.methods if variant.partition("@")[0] == REFERENCE_METHOD
    ]
    variant = (
        REFERENCE_METHOD
        if REFERENCE_METHOD in fedavg_variants or not fedavg_variants
        else fedavg_variants[0]
    )
    reference = compute_cost_per_round(
        comparison.make_run_config(variant, comparison.seeds[0]), data
    )
    rounds_by_config: dict[str, int] = {}
    budgeted_configs = []
    for config in configs:
        config_key = config.model_copy(update={"seed": 0}).model_dump_json()
        if config_key not in rounds_by_config:
            cost_per_round = compute_cost_per_round(config, data)
            rounds_by_config[config_key] = (
                max(1, round(config.rounds * reference / cost_per_round))
                if cost_per_round
                else config.rounds
            )
        rounds = {
            "rounds": rounds_by_config[config_key],
            "evaluate_every": comparison.evaluate_every,
        }
        budgeted_configs.append(config.model_copy(update=rounds).resolve())
    each = dict.fromkeys(
        f"{config.label or config.method} {config.rounds}" for config in budgeted_configs
    )
    unit = {"gradients": "client gradients", "bytes": "bytes"}[comparison.budget]
    message = f"As many {unit} for all methods as {comparison.rounds} rounds of {variant} take, in rounds: {', '.join(each)}."
    return BudgetedRuns(budgeted_configs, message)


def compute_cost_per_round(config: RunConfig, data: FederatedDataset) -> float:
    """What a round costs of what is held equal."""
    context = build.build_context(config, data)
    client_ids, cohort = context.data.groups["train"], get_cohort_size(context, config.cohort)
    if not context.method.client.phases:
        return 0.0
    meter = CostMeter(context)
    return cohort * float(
        meter.bytes_per_client
        if config.budget == "bytes"
        else meter.compute_client_cost(client_ids).gradients.mean()
    )
