"""Makes the table of the study from records.json.

python studies/methods/table.py          prints it
python studies/methods/table.py write    puts it into the documents that show it
"""

import json
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from fedtailor.run.study.tables import ONE_SPLIT

HERE = Path(__file__).parent
DOCUMENTS = (HERE / "README.md", HERE.parents[1] / "docs" / "methods.md")
BEGIN, END = "<!-- made by studies/methods/table.py -->", "<!-- end of the table -->"
BASELINES = {"local": "**Local-only** (`local`)", "fedavg": "**FedAvg + fine-tuning** (`fedavg`)"}
HEADINGS = ("method", "local before", "local after", "worst tenth", "new before", "new after", "MB")

Run = dict[str, Any]


class Spread(NamedTuple):
    """A figure in percent over seeds."""

    mean: float
    std: float

    def __str__(self) -> str:
        """Mean and sample standard deviation."""
        return f"{self.mean:.1f} ± {self.std:.1f}"


def by_method(records: dict[str, Any]) -> dict[str, list[Run]]:
    """The runs of each method."""
    runs = records["runs"]
    return {name: [run for run in runs if run["name"] == name] for name in dict.fromkeys(run["name"] for run in runs)}


def over_seeds(runs: list[Run], column: str, figure: str = "macro") -> Spread:
    """Mean and standard deviation over seeds of a figure over clients."""
    values = [100 * run[column][figure] for run in runs]
    return Spread(mean(values), stdev(values))


def row(runs: dict[str, list[Run]], name: str) -> str:
    """A method's line."""
    sent = mean(run["cost"]["bytes_down"] + run["cost"]["bytes_up"] for run in runs[name]) / 1e6
    cells = (
        BASELINES.get(name, f"`{name}`"),
        str(over_seeds(runs[name], "local before")),
        str(over_seeds(runs[name], "local after")),
        str(over_seeds(runs[name], "local after", "worst tenth")),
        str(over_seeds(runs[name], "new before")),
        str(over_seeds(runs[name], "new after")),
        f"{sent:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def table(records: dict[str, Any]) -> str:
    """Write the table in Markdown, by falling accuracy of local clients after personalising."""
    runs = by_method(records)
    names = sorted(runs, key=lambda name: -over_seeds(runs[name], "local after").mean)
    rule = "|---|" + "---:|" * (len(HEADINGS) - 1)
    return "\n".join([f"| {' | '.join(HEADINGS)} |", rule, *(row(runs, name) for name in names), "", ONE_SPLIT])


def shown_in(document: str) -> str:
    """The table that a document shows."""
    return document.partition(BEGIN)[2].partition(END)[0].strip()


def main() -> None:
    made = table(json.loads((HERE / "records.json").read_text()))
    if sys.argv[1:] != ["write"]:
        print(made)
        return
    for path in DOCUMENTS:
        before, begin, rest = path.read_text().partition(BEGIN)
        path.write_text(f"{before}{begin}\n\n{made}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
