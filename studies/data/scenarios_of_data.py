"""Every kind of scenario in one line each, with its statistics; those of the papers beside.

    python studies/data/scenarios_of_data.py write

builds them all (the data sets must have been added) and writes the table into docs/data.md; without
`write` it prints.
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor import data
from fedtailor.data.dataset import FederatedDataset
from fedtailor.errors import FedtailorError
from fedtailor.training.overrides import parse_value

DOCUMENT = Path(__file__).parents[2] / "docs" / "data.md"
BEGIN, END = "<!-- scenarios: begin -->", "<!-- scenarios: end -->"


class Scenario(NamedTuple):
    """Scenario of a paper, or of a kind of its own."""

    title: str
    words: str  # a data set and its options
    paper: str = ""  # what the paper prints of it


SCENARIOS = (
    Scenario(
        "FedMeta-Per, MNIST", "mnist server=0 adapt=0.2", "50; 69,909; 135-5,201; 1,398 ± 1,424"
    ),
    Scenario(
        "FedMeta-Per, CIFAR-10", "cifar10 server=0 adapt=0.2", "50; 52,497; 506-1,986; 1,049 ± 250"
    ),
    Scenario(
        "Per-FedAvg, MNIST", "mnist partition=half-and-half images=196 server=0", "50; a = 196"
    ),
    Scenario(
        "Per-FedAvg, CIFAR-10", "cifar10 partition=half-and-half images=68 server=0", "50; a = 68"
    ),
    Scenario(
        "the same, other heterogeneity",
        "cifar10 partition=half-and-half images=68 drop_half=true server=0",
    ),
    Scenario(
        "FSL, CIFAR-10, 10 clients",
        "cifar10 partition=few-labels clients=10 size=5000 server=628 overlap=true",
        "10; 50,000; 5,000 each; server 500",
    ),
    Scenario(
        "FSL, CIFAR-10, 1000 clients",
        "cifar10 partition=few-labels clients=1000 size=50 server=13 server_from=whole-clients "
        "overlap=true",
        "1,000; 50,000; 50 each; server 500",
    ),
    Scenario(
        "FSL, EMNIST, some clients' examples",
        "emnist-balanced partition=few-labels clients=45 labels=3 "
        "server=9 server_from=client-samples server_each=62 overlap=true",
        "450; 108,000; 240 each; server 450",
    ),
    Scenario(
        "FSL, EMNIST, rendered characters",
        "emnist-balanced partition=few-labels clients=45 labels=3 server=705 server_from=rendered",
        "server 675 = 45 x 15",
    ),
    Scenario("FedSIM, FEMNIST", "femnist server=0.05", "3,230 + 170 clients; 671,585 for training"),
    Scenario("the same, the server has less", "femnist server=0.02 reserved=0.05"),
    Scenario(
        "FedSIM, Shakespeare", "shakespeare server=0.05", "680 + 35 clients; 16,068 for training"
    ),
    Scenario(
        "FedSIM, Stack Exchange for StackOverflow",
        "stackexchange server=0.05",
        "325,354 + 17,123; 135,818,730",
    ),
    Scenario(
        "FedSIM, EMNIST by Pachinko for CIFAR-100",
        "emnist-balanced partition=pachinko clients=350 size=100 "
        "server=0.05 server_from=whole-clients",
        "475 + 25 clients; 50,000 for training",
    ),
    Scenario(
        "AFML, diversity 0.7",
        "cifar10 partition=dirichlet alpha=0.5 zeta=0.3 augment=true server=0",
    ),
    Scenario("server: as many of each class", "mnist server=500 server_from=classes"),
    Scenario(
        "server: another data set", "mnist server=500 server_from=set server_set=emnist-balanced"
    ),
    Scenario("server: a noisy copy", "mnist server=500 server_damage=noise server_amount=0.5"),
    Scenario(
        "server: a third of its labels wrong",
        "mnist server=500 server_damage=wrong-labels server_amount=0.33",
    ),
    Scenario("McMahan's shards", "mnist partition=shards clients=100 shards=2"),
    Scenario("Dirichlet by label", "emnist-balanced partition=dirichlet alpha=0.1 clients=100"),
    Scenario("sizes alone differ", "mnist partition=quantity alpha=0.5 clients=100"),
    Scenario(
        "half of the clients by another rule",
        "mnist partition=iid others=few-labels labels=1 clients=100",
    ),
)


def load_scenario(scenario: Scenario) -> FederatedDataset:
    """Return the data set that the words name."""
    name, *words = scenario.words.split()
    return data.load(name, **parse_options(words))


def parse_options(words: list[str]) -> dict[str, Any]:
    """Return words KEY=VALUE as options."""
    options = {}
    for word in words:
        key, _, text = word.partition("=")
        options[key] = parse_value(text)
    return options


def format_line(scenario: Scenario) -> str:
    """Return the scenario's line of the table."""
    dataset = load_scenario(scenario)
    about = dataset.describe()
    splits = [dataset.clients.splits[name] for name in dataset.get_disjoint_splits()]
    sizes = np.sum([split.compute_sizes() for split in splits], axis=0)
    labels = "-"
    if dataset.clients.y.ndim == 1:
        owners = np.concatenate([split.compute_owners() for split in splits])
        rows = np.concatenate([np.asarray(split.index) for split in splits])
        pairs = np.stack([owners, dataset.clients.y[rows].astype(np.int64)])
        num_distinct_pairs = np.unique(pairs, axis=1).shape[1]
        labels = f"{num_distinct_pairs / dataset.clients.count:.1f}"
    spread = f"{sizes.min():,}-{sizes.max():,}; {sizes.mean():,.0f} ± {sizes.std():,.0f}"
    cells = (
        scenario.title,
        f"`{scenario.words}`",
        f"{dataset.clients.count:,}; {about.examples:,}; {spread}",
        labels,
    )
    return f"| {' | '.join((*cells, f'{about.server:,}', scenario.paper))} |"


def format_table() -> str:
    """Return the table of all scenarios."""
    columns = "scenario", "`fedtailor data show ...`", "clients; examples; of a client; mean ± std"
    head = f"| {' | '.join((*columns, 'labels', 'server', 'paper'))} |"
    return "\n".join(
        [head, "|---|---|---|---|---|---|", *(format_line(scenario) for scenario in SCENARIOS)]
    )


def main() -> None:
    try:
        table = format_table()
    except FedtailorError as problem:
        sys.exit(f"scenarios: {problem}")
    if sys.argv[1:] != ["write"]:
        print(table)
        return
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
