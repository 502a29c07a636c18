"""The runs of docs/data.md: collects them into records.json, with what always saying the same would
reach.

    fedtailor run studies/data/NAME.toml out=OUT/NAME    for each of the five
    python studies/data/runs_of_data.py OUT              adds them to records.json and docs/data.md
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor import data
from fedtailor.data.dataset import FederatedDataset

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs" / "data.md"
BEGIN, END = "<!-- runs: begin -->", "<!-- runs: end -->"
NAMES = ("femnist", "cifar10", "emnist", "shakespeare", "stackexchange")
GROUPS = ("participating", "unseen")


def trivial(dataset: FederatedDataset) -> dict[str, float]:
    """The accuracy, on a group's test examples, of always saying the most frequent train label."""
    left_out = (*dataset.padding, *dataset.unscored_tokens)
    train = _counted(dataset, "train", "train", left_out)
    most = int(np.bincount(train).argmax())
    return {
        group: float((_counted(dataset, group, "test", left_out) == most).mean())
        for group in GROUPS
    }


def _counted(
    dataset: FederatedDataset, group: str, split: str, left_out: tuple[int, ...]
) -> np.ndarray:
    rows = np.concatenate(
        [dataset.clients.splits[split].get_rows(int(who)) for who in dataset.groups[group]]
    )
    labels = dataset.clients.y[rows].astype(np.int64).ravel()
    return np.asarray(labels[~np.isin(labels, left_out)])


def figures(record: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a run: figures over the clients of a group, and costs."""
    found: dict[str, Any] = {
        "name": record["name"],
        "seed": record["config"]["seed"],
        "cost": record["cost"],
    }
    for group, scores in record["scores"].items():
        weights = np.array(scores["weights"], float)
        for when in ("before", "after"):
            values = np.array(scores[when]["accuracy"], float)
            tested = ~np.isnan(values)
            worst = np.sort(values[tested])[: -(-int(tested.sum()) // 10)]
            found[f"{group} {when}"] = {
                "macro": float(values[tested].mean()),
                "std": float(values[tested].std()),
                "micro": float(np.average(values[tested], weights=weights[tested])),
                "worst tenth": float(worst.mean()),
            }
    return found


def collected(out: Path) -> dict[str, Any]:
    found = {}
    for name in (name for name in NAMES if (out / name).exists()):
        record = json.loads((out / name / "record.json").read_text())
        spec = record["config"]
        about = {key: spec[key] for key in ("data", "data_options", "model", "rounds", "cohort")}
        about |= {key: record[key] for key in ("hparams", "versions")}
        made = trivial(data.load(spec["data"], **spec["data_options"]))
        found[name] = {"about": about, "trivial": made, **figures(record)}
    return found


def table(records: dict[str, Any]) -> str:
    """Accuracy in percent, over all examples of a group."""
    head = "| run | data, model | rounds | clients | most frequent | before | after | s |"
    lines = [head, "|---|---|---:|---|---:|---:|---:|---:|"]
    for name, run in records.items():
        about = run["about"]
        for group in GROUPS:
            cells = [f"`{name}.toml`", f"{about['data']}, {about['model']}", str(about["rounds"])]
            cells = cells if group == GROUPS[0] else ["", "", ""]
            rates = [
                run["trivial"][group],
                *(run[f"{group} {when}"]["micro"] for when in ("before", "after")),
            ]
            seconds = ""
            if group == GROUPS[0]:
                seconds = f"{run['cost']['seconds'] + run['cost']['scoring_seconds']:.0f}"
            percentages = [f"{100 * rate:.1f}" for rate in rates]
            lines.append(f"| {' | '.join([*cells, group, *percentages, seconds])} |")
    return "\n".join(lines)


def main() -> None:
    known = json.loads((HERE / "records.json").read_text()) | collected(Path(sys.argv[1]))
    records = {name: known[name] for name in NAMES if name in known}
    (HERE / "records.json").write_text(json.dumps(records, indent=1) + "\n")
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{table(records)}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
