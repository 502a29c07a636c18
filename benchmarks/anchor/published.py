"""Tables of others on PFLlib's split, with their sources, and what is different there.

PFLlib's code was read at commits 004a405 (`system/main.py`, README), 487a29e (`clientpFedMe.py`),
2b077c1 (`fedoptimizer.py`), 11443be (`clientapfl.py`), 0b10759 (`serverbase.py`) and b9565b0
(`dataset/`); nothing of it was run.
"""

from typing import NamedTuple


class Published(NamedTuple):
    """A column of a published table: percent, with the standard deviation over its trials."""

    source: str
    accuracies: dict[str, tuple[float, float]]


LEADERBOARD = Published(
    "PFLlib's leaderboard (github.com/TsingZ0/PFLlib, docs/benchmark.html, commit 001082f), "
    "practical label skew, column FMNIST; three trials",
    {
        "fedavg": (85.85, 0.19),
        "fedprox": (85.63, 0.57),
        "per-fedavg": (95.10, 0.10),
        "pfedme": (97.25, 0.17),
        "ditto": (97.47, 0.04),
        "apfl": (97.25, 0.08),
        "fedper": (97.44, 0.06),
        "fedrep": (97.56, 0.04),
    },
)
FEDALA = Published(
    "FedALA (Zhang et al., AAAI 2023, arXiv 2212.01197), by PFLlib's authors with an earlier state "
    "of it, table 2, practical setting, column Cifar10; five trials. PFLlib's leaderboard has no "
    "column for CIFAR-10. The figures are from a transcription of that table, whose columns "
    "Cifar100 and TINY are those of the leaderboard in the rows compared (Per-FedAvg, pFedMe, "
    "Ditto, FedRep); FedAvg's 59.16 is also quoted in "
    "TsingZ0/PFLlib#223",
    {
        "fedavg": (59.16, 0.47),
        "fedprox": (59.21, 0.40),
        "per-fedavg": (87.74, 0.19),
        "pfedme": (88.09, 0.32),
        "ditto": (90.59, 0.01),
        "fedrep": (90.40, 0.24),
    },
)
PUBLISHED = {"cifar10": FEDALA, "fashion-mnist": LEADERBOARD}
"""The published column for each set."""
