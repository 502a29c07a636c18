"""The scenarios of the study, and what the server has in each, as words of a command line."""

COMMON = "batch=20 lr=0.1 data.validation_clients=0.2"
FEW = f"data.partition=few-labels {COMMON}"
SCENARIOS = {
    "mnist": f"data=mnist data.clients=50 data.labels=2 data.size=200 cohort=5 {FEW}",
    "emnist": f"data=emnist-balanced data.clients=94 data.labels=3 data.size=150 cohort=10 {FEW}",
    "femnist": f"data=femnist data.least=100 cohort=10 {COMMON}",
}


def damaged(kind: str, amount: float, server: str = "500") -> str:
    """The words for some server data with an amount of damage of a kind."""
    return f"data.server={server} data.server_damage={kind} data.server_amount={amount}"


SIZES = {f"{count} examples": f"data.server={count}" for count in (20, 100, 500, 2000)}
DAMAGES = {
    "a third of the labels wrong": damaged("wrong-labels", 0.33),
    "two thirds of the labels wrong": damaged("wrong-labels", 0.66),
    "all labels wrong": damaged("wrong-labels", 1.0),
    "labels shuffled": damaged("shuffled-labels", 1.0),
    "noisy": damaged("noise", 0.5),
    "blurred": damaged("blur", 0.15),
    "inverted": damaged("invert", 1.0),
    "rotated": damaged("rotate", 1.0),
    "little contrast": damaged("contrast", 0.9),
    "partly hidden": damaged("occlude", 0.4),
}
MNIST = {
    **SIZES,
    **DAMAGES,
    "rendered characters": "data.server=150 data.server_from=rendered",
    "two clients' labels only": "data.server=2 data.server_from=whole-clients",
    "another set (EMNIST)": "data.server=500 data.server_from=set data.server_set=emnist-balanced",
}
EMNIST = {
    **{f"{count} examples": f"data.server={count}" for count in (100, 500, 1500)},
    "a quarter of the labels wrong": damaged("wrong-labels", 0.25),
    "half of the labels wrong": damaged("wrong-labels", 0.5),
    "labels shuffled": damaged("shuffled-labels", 1.0),
    "half of the labels shuffled": damaged("shuffled-labels", 0.5),
    "noisy": damaged("noise", 0.3),
    "very noisy": damaged("noise", 0.8),
    "blurred": damaged("blur", 0.1),
    "a third inverted": damaged("invert", 0.33),
    "inverted": damaged("invert", 1.0),
    "rotated": damaged("rotate", 1.0),
    "rendered characters": "data.server=705 data.server_from=rendered",
    "four clients' labels only": "data.server=4 data.server_from=whole-clients",
}
FEMNIST = {
    "5 % of the writers": "data.server=0.05",
    "rendered characters": "data.server=930 data.server_from=rendered",
    "5 % of the writers, labels shuffled": damaged("shuffled-labels", 1.0, "0.05"),
}
SERVER_DATA = {"mnist": MNIST, "emnist": EMNIST, "femnist": FEMNIST}
RUNS = (("femnist", 0), ("femnist", 1), ("mnist", 1), ("emnist", 1))
"""What the tables show. The predictor was made on mnist with seed 0, and tried out on femnist with
seed 0.
"""
