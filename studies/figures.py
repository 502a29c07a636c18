"""Prints the figures of a study's records as a Markdown table, accuracy in percent: mean ± spread over seeds.

python studies/figures.py RECORDS.json
"""

import json
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

COLUMNS = ("local before", "local after", "new before", "new after")


def cell(runs: list[dict[str, Any]], column: str, figure: str) -> str:
    """Mean over seeds, with the sample standard deviation where there are several; - for a group with nobody in it."""
    if column not in runs[0]:
        return "-"
    values = [100 * run[column][figure] for run in runs]
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def table(records: dict[str, Any], figure: str = "micro") -> str:
    """A line for each method, in the order of the records."""
    groups = [column for column in COLUMNS if any(column in run for run in records["runs"])]
    lines = [f"| method | seeds | {' | '.join(groups)} |", "|---|---:|" + "---:|" * len(groups)]
    for name in dict.fromkeys(run["name"] for run in records["runs"]):
        own = [run for run in records["runs"] if run["name"] == name]
        cells = [f"`{name}`", str(len(own)), *(cell(own, column, figure) for column in groups)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text())))
