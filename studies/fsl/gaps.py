"""FSL's figure 9: how far clients' gradients are from their mean (G^2) along FedAvg, and the
server's from it (xi^2).

    python studies/fsl/gaps.py [KEY=VALUE ...]    measures, writes gaps.json; keys of fedtailor run
    python studies/fsl/gaps.py write              puts its table into README.md
"""

import json
import sys
from itertools import islice, product
from pathlib import Path
from typing import Any

from fedtailor.engines import factory
from fedtailor.inspection.statistics.gradients import compute_gradient_gaps
from fedtailor.training import from_config
from fedtailor.training.loop import run_rounds
from fedtailor.training.overrides import read_run_config

HERE = Path(__file__).parent
BEGIN, END = "<!-- made by studies/fsl/gaps.py -->", "<!-- end of the gaps -->"
LABELS, SERVER = (1, 5, 15), (94, 235)
LOOKS = (0, 50, 100, 200)
SETTING = [
    *(
        "method=fedavg",
        "data=emnist-balanced",
        "model=fsl-emnist",
        "cohort=5",
        "lr=0.05",
        "batch=50",
        "epochs=1",
    ),
    *(
        "server_lr=2.2361",
        "data.partition=few-labels",
        "data.clients=45",
        "data.size=750",
        "data.test_share=0.2",
    ),
    *(
        "data.validation_clients=0",
        "data.unseen_clients=0",
        "data.server_from=classes",
        f"rounds={max(LOOKS)}",
    ),
]

Record = dict[str, Any]


def along(words: list[str]) -> list[Record]:
    """G^2 and xi^2 at some rounds of one run."""
    spec = read_run_config(words)
    data = from_config.load_dataset(spec)
    setting = from_config.build_context(spec, data)
    engine, state = factory.make_engine(setting, compile=False), setting.init_server_state()
    rounds = run_rounds(setting, engine, state, spec.cohort, [False].__contains__)
    found = []
    for number in range(max(LOOKS) + 1):
        if number:
            state = next(islice(rounds, 1)).state
        if number in LOOKS:
            gaps = compute_gradient_gaps(setting.task, state.params, data)
            found.append(
                {"round": number, "clients": gaps.clients, "server": gaps.server, "loss": gaps.loss}
            )
    return found


def table(records: list[Record]) -> str:
    """A line for each number of labels: G^2, and xi^2 for each size of the server's data."""
    heads = [f"G^2, round {look} | xi^2, {SERVER[0]} | xi^2, {SERVER[1]}" for look in LOOKS]
    lines = [f"| labels | {' | '.join(heads)} |", "|---|" + "---:|" * 3 * len(LOOKS)]
    for labels in LABELS:
        few, many = (
            [one for one in records if one["labels"] == labels and one["server"] == size]
            for size in SERVER
        )
        cells = [str(labels)]
        for less, more in zip(few[0]["along"], many[0]["along"], strict=True):
            cells += [f"{value:.3g}" for value in (more["clients"], less["server"], more["server"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def shown_in(document: str) -> str:
    """The table that a document shows."""
    return document.partition(BEGIN)[2].partition(END)[0].strip()


def main(words: list[str]) -> None:
    if words == ["write"]:
        made, path = table(json.loads((HERE / "gaps.json").read_text())), HERE / "README.md"
        before, begin, rest = path.read_text().partition(BEGIN)
        path.write_text(f"{before}{begin}\n\n{made}\n\n{END}{rest.partition(END)[2]}")
        return
    records = []
    for labels, size in product(LABELS, SERVER):
        found = along([*SETTING, f"data.labels={labels}", f"data.server={size}", *words])
        records.append({"labels": labels, "server": size, "words": words, "along": found})
        print(records[-1], flush=True)
    (HERE / "gaps.json").write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
