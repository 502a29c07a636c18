"""Equal budgets: how many rounds each method gets for as many gradients, or as many bytes, as FedAvg takes.

What a round costs is what it costs on average over the clients that may be drawn: gradient evaluations of the clients
(not of the server), or bytes down and up. A method that costs nothing of the kind keeps the rounds as they are, and
everybody gets at least one.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fedtailor.data.dataset import FederatedDataset
from fedtailor.run import build
from fedtailor.run.costs import Meter
from fedtailor.run.fitting import cohort_of
from fedtailor.run.spec import Comparison, Spec

REFERENCE = "fedavg"
"""Whose cost of all rounds is everybody's budget."""


class Budgeted(NamedTuple):
    """Runs with the rounds that they can afford, and a line that says so, unless rounds themselves are the budget."""

    specs: list[Spec]
    said: str


def budgeted(comparison: Comparison, specs: Sequence[Spec]) -> Budgeted:
    """The runs of a comparison with equal budgets."""
    if comparison.budget == "rounds":
        return Budgeted(list(specs), "")
    data = build.dataset(specs[0])
    named = [word for word in comparison.methods if word.partition("@")[0] == REFERENCE]
    word = REFERENCE if REFERENCE in named or not named else named[0]
    reference = per_round(comparison.spec_of(word, comparison.seeds[0]), data)
    known: dict[str, int] = {}
    made = []
    for spec in specs:
        like = spec.model_copy(update={"seed": 0}).model_dump_json()
        if like not in known:
            own = per_round(spec, data)
            known[like] = max(1, round(spec.rounds * reference / own)) if own else spec.rounds
        rounds = {"rounds": known[like], "evaluate_every": comparison.evaluate_every}
        made.append(spec.model_copy(update=rounds).resolved())
    each = dict.fromkeys(f"{spec.label or spec.method} {spec.rounds}" for spec in made)
    what = {"gradients": "client gradients", "bytes": "bytes"}[comparison.budget]
    said = f"As many {what} for everybody as {comparison.rounds} rounds of {word} take, in rounds: {', '.join(each)}."
    return Budgeted(made, said)


def per_round(spec: Spec, data: FederatedDataset) -> float:
    """What a round costs of what is held equal."""
    setting = build.setting(spec, data)
    people, cohort = setting.data.groups["train"], cohort_of(setting, spec.cohort)
    if not setting.method.client.phases:
        return 0.0
    meter = Meter(setting)
    return cohort * float(meter.sent if spec.budget == "bytes" else meter.of_clients(people).gradients.mean())
