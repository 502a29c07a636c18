"""Makes the tables of the study from records.json.

python studies/inspect/verdicts.py          prints them
python studies/inspect/verdicts.py write    puts them into README.md
"""

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

HERE = Path(__file__).parent
BEGIN, END = "<!-- made by studies/inspect/verdicts.py -->", "<!-- end of the tables -->"
HEADINGS = (
    "server data",
    "examples",
    "warm model agrees",
    "verdict",
    "predicted",
    "measured",
    "FedAvg",
    "FSL",
    "as advised",
)
NAMES = {"mnist": "MNIST", "emnist": "EMNIST", "femnist": "FEMNIST"}
HARM = 0.05
"""A smaller difference is little, as `inspect` has it."""
LEAST = 12
"""Minimum number of kinds of server data whose order is judged."""

Record = dict[str, Any]


def gain(record: Record) -> float:
    """What FSL gained over FedAvg."""
    return float(record["fsl"] - record["fedavg"])


def correlation(records: list[Record]) -> float:
    """Spearman's rank correlation of predicted and measured gains."""
    return float(
        spearmanr(
            [each["predicted"] for each in records], [gain(each) for each in records]
        ).statistic
    )


def right(record: Record) -> bool:
    """Whether what the verdict says came true: a gain with the advised gamma, a loss or little at
    gamma = 1.
    """
    advised = record["advised"] > record["fedavg"]
    return bool(
        {"helps": advised, "little": abs(gain(record)) < HARM, "harms": gain(record) < 0}[
            record["verdict"]
        ]
    )


def row(record: Record) -> str:
    """The line of one kind of server data."""
    helps = record["verdict"] == "helps"
    cells = (
        record["server_data"],
        f"{record['server']:,}",
        f"{100 * record['agreement']:.0f}",
        record["verdict"],
        f"{100 * record['predicted']:+.1f}",
        f"{100 * gain(record):+.1f}",
        f"{100 * record['fedavg']:.1f}",
        f"{100 * record['fsl']:.1f}",
        f"{100 * (record['advised'] - record['fedavg']):+.1f} (gamma={record['gamma']:g})"
        if helps
        else "",
    )
    return f"| {' | '.join(cells)} |"


def sets(records: list[Record]) -> list[tuple[str, list[Record]]]:
    """The records of each scenario and seed."""
    grouped = groupby(records, key=lambda each: f"{NAMES[each['scenario']]}, seed {each['seed']}")
    return [(name, list(own)) for name, own in grouped]


def summary(name: str, records: list[Record]) -> str:
    """How well the order and the directions were predicted."""
    said = f"{sum(map(right, records))} of {len(records)} verdicts came true"
    if len(records) < LEAST:
        return f"**{name}**: {said}."
    rank_correlation = f"{correlation(records):.2f} over {len(records)} kinds of server data"
    return f"**{name}**: rank correlation {rank_correlation}; {said}."


def tables(records: list[Record]) -> str:
    """A table for each scenario and seed, the best prediction first."""
    parts = []
    for name, own in sets(records):
        ordered = sorted(own, key=lambda each: -each["predicted"])
        rule = "|---|---:|---:|---|" + "---:|" * 5
        parts.append(
            "\n".join(
                [summary(name, own), "", f"| {' | '.join(HEADINGS)} |", rule, *map(row, ordered)]
            )
        )
    return "\n\n".join(parts)


def shown_in(document: str) -> str:
    """The tables that a document shows."""
    return document.partition(BEGIN)[2].partition(END)[0].strip()


def main() -> None:
    made = tables(json.loads((HERE / "records.json").read_text()))
    if sys.argv[1:] != ["write"]:
        print(made)
        return
    path = HERE / "README.md"
    before, begin, rest = path.read_text().partition(BEGIN)
    path.write_text(f"{before}{begin}\n\n{made}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
