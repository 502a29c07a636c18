"""Collects the runs of docs/data.md into records.json, with the accuracy of a constant prediction.

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


def compute_constant_accuracy(dataset: FederatedDataset) -> dict[str, float]:
    """Return each group's test accuracy of always predicting the most frequent train label."""
    train_labels = _get_scored_labels(dataset, "train", "train")
    most_frequent = int(np.bincount(train_labels).argmax())
    return {
        group: float((_get_scored_labels(dataset, group, "test") == most_frequent).mean())
        for group in GROUPS
    }


def _get_scored_labels(dataset: FederatedDataset, group: str, split: str) -> np.ndarray:
    """Return the labels, or tokens that are scored, of a group's examples in a split."""
    client_rows = [
        dataset.clients.splits[split].get_rows(int(client)) for client in dataset.groups[group]
    ]
    labels = dataset.clients.y[np.concatenate(client_rows)].astype(np.int64).ravel()
    is_unscored = np.isin(labels, (*dataset.padding, *dataset.unscored_tokens))
    return np.asarray(labels[~is_unscored])


def summarize_run(record: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a run's record: figures over the clients of a group, and costs."""
    summary: dict[str, Any] = {
        "name": record["name"],
        "seed": record["config"]["seed"],
        "cost": record["cost"],
    }
    for group, scores in record["scores"].items():
        weights = np.array(scores["weights"], float)
        for when in ("before", "after"):
            values = np.array(scores[when]["accuracy"], float)
            is_tested = ~np.isnan(values)
            worst = np.sort(values[is_tested])[: -(-int(is_tested.sum()) // 10)]
            summary[f"{group} {when}"] = {
                "macro": float(values[is_tested].mean()),
                "std": float(values[is_tested].std()),
                "micro": float(np.average(values[is_tested], weights=weights[is_tested])),
                "worst tenth": float(worst.mean()),
            }
    return summary


def collect_runs(out: Path) -> dict[str, Any]:
    """Return the summaries of the runs that are in a folder, by name."""
    runs = {}
    for name in NAMES:
        if not (out / name).exists():
            continue
        record = json.loads((out / name / "record.json").read_text())
        spec = record["config"]
        about = {key: spec[key] for key in ("data", "data_options", "model", "rounds", "cohort")}
        about |= {key: record[key] for key in ("hparams", "versions")}
        dataset = data.load(spec["data"], **spec["data_options"])
        trivial = compute_constant_accuracy(dataset)
        runs[name] = {"about": about, "trivial": trivial, **summarize_run(record)}
    return runs


def format_table(records: dict[str, Any]) -> str:
    """Return a table of accuracies in percent, over all examples of a group."""
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
    runs = json.loads((HERE / "records.json").read_text()) | collect_runs(Path(sys.argv[1]))
    records = {name: runs[name] for name in NAMES if name in runs}
    (HERE / "records.json").write_text(json.dumps(records, indent=1) + "\n")
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{format_table(records)}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
