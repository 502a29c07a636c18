"""Collects the finished runs of a comparison into one small file, from which the table in the docs is made.

python studies/methods/collect.py OUT [FILE]      reads OUT/*/record.json, writes FILE (default: records.json here)
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent


def figures(record: dict[str, Any]) -> dict[str, Any]:
    """What the table needs of a run: mean and worst tenth over clients, micro accuracy, and costs."""
    found: dict[str, Any] = {"name": record["name"], "seed": record["spec"]["seed"], "cost": record["cost"]}
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


def main() -> None:
    out, to = Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else HERE / "records.json"
    records = [json.loads(path.read_text()) for path in sorted(out.glob("*/record.json"))]
    finished = [record for record in records if record["status"] == "finished"]
    about = {key: finished[0][key] for key in ("versions", "commit")} | {"spec": finished[0]["spec"]["data_options"]}
    content = {"about": about, "runs": [figures(record) for record in finished]}
    to.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{len(finished)} runs in {to}")


if __name__ == "__main__":
    main()
