"""Chooses hyper-parameters for every method on two-label MNIST: four trials each, judged by validation clients alone.

python studies/methods/choose.py OUT JOBS      runs what has not been run, and writes OUT/chosen.toml
"""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

from fedtailor.run.spec import Spec, read_comparison
from fedtailor.run.study.processes import work_all
from fedtailor.run.study.working import Event, units_of

FILE = Path(__file__).parent / "setting.toml"
RATES: dict[str, list[Any]] = {"lr": [0.02, 0.05, 0.1, 0.3]}
TWO = [0.05, 0.2]
GRIDS: dict[str, dict[str, list[Any]]] = {
    "local": RATES,
    "centralised": RATES,
    "fedavg": RATES,
    "fedprox": {"lr": TWO, "lam": [0.1, 1.0]},
    "scaffold": RATES,
    "feddyn": {"lr": TWO, "alpha": [0.01, 0.1]},
    "pfedme": {"lr": [0.02, 0.1], "lam": [5.0, 15.0]},
    "ditto": {"lr": TWO, "lam": [0.1, 1.0]},
    "apfl": {"lr": TWO, "mixing": [0.25, 0.5]},
    "fedrep": {"lr": TWO, "head_epochs": [1, 5]},
    "fedper": RATES,
    "lg-fedavg": RATES,
    "reptile": {"lr": TWO, "epsilon": [0.5, 1.0]},
    "per-fedavg": {"lr": TWO, "alpha": [0.01, 0.1]},
    "per-fedavg@fo": {"lr": TWO, "alpha": [0.01, 0.1]},
    "per-fedavg@hf": {"lr": TWO, "alpha": [0.01, 0.1]},
    "fedmeta": {"lr": TWO, "alpha": [0.01, 0.1]},
    "fedmeta@meta-sgd": {"lr": TWO, "alpha": [0.01, 0.1]},
    "fedmeta-per": {"lr": TWO, "alpha": [0.01, 0.1]},
    "fedmeta-per@meta-sgd": {"lr": TWO, "alpha": [0.01, 0.1]},
    "fsl": {"lr": TWO, "gamma": [0.3, 1.0]},
    "fsl-p": {"lr": TWO, "gamma": [0.3, 1.0]},
    "ds": RATES,
    "fedsim": {"lr": TWO, "lam": [0.1, 1.0]},
    "afml": {"lr": [0.1, 0.3], "eta": [0.1, 0.5]},
    "fsl+fedsim": {"lr": TWO, "gamma": [0.3, 1.0]},
    "per+fedsim": {"lr": TWO, "lam": [0.1, 1.0]},
    "fsl+per+fedsim": {"lr": TWO, "gamma": [0.3, 1.0]},
    "fsl+per+fedmeta": {"lr": TWO, "alpha": [0.01, 0.1]},
}


FIXED: dict[str, dict[str, Any]] = {
    "per-fedavg@fo": {"variant": "fo"},
    "per-fedavg@hf": {"variant": "hf"},
    "fedmeta@meta-sgd": {"inner": "meta-sgd"},
    "fedmeta-per@meta-sgd": {"inner": "meta-sgd"},
}
"""What makes a variant."""


def trials(out: Path) -> list[tuple[str, dict[str, Any], Spec, Path]]:
    """Every method with every point of its grid, on one seed that the table does not use."""
    made = []
    for name, grid in GRIDS.items():
        for number, values in enumerate(itertools.product(*grid.values())):
            point = dict(zip(grid, values, strict=True))
            words = [f"{name}.{key}={value}" for key, value in (FIXED.get(name, {}) | point).items()]
            (spec,) = read_comparison([str(FILE), f"methods={name}", "seeds=100", *words]).specs()
            made.append((name, point, spec, out / f"{name}-trial{number}"))
    return made


def validated(place: Path) -> float:
    """The mean accuracy of the validation clients after personalising, at the last round; -1 if the trial failed."""
    try:
        record = json.loads((place / "record.json").read_text())
        if record["status"] != "finished":
            return -1.0
        return float(record["rounds"][-1]["scores"]["validation"]["after"]["accuracy"])
    except (OSError, KeyError, IndexError, TypeError):
        return -1.0


def hear(event: Event) -> None:
    if event.kind != "round":
        print(f"{event.run}: {event.kind} {event.news}", flush=True)


def main() -> None:
    out, jobs = Path(sys.argv[1]), int(sys.argv[2])
    made = trials(out)
    units = units_of("methods", "trials", [(spec, place) for _, _, spec, place in made], 1)
    for _ in work_all(units, jobs, hear, bool):
        pass
    lines = [FILE.read_text().rstrip()]
    for name in GRIDS:
        own = [(validated(place), point) for each, point, _, place in made if each == name]
        best = max(own, key=lambda pair: pair[0])[1]
        lines.append(f"\n[hyper.{json.dumps(name)}]  # validation accuracies: {', '.join(f'{x:.4f}' for x, _ in own)}")
        lines += [f"{key} = {json.dumps(value)}" for key, value in (FIXED.get(name, {}) | best).items()]
    (out / "chosen.toml").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
