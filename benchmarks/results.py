"""Where results lie and how they are said: JSON files, each with the machine that it was measured
on.
"""

import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedtailor.training.record.provenance import get_machine_name

FOLDER = Path(__file__).parent / "results"


def machine(device: str = "cpu") -> dict[str, Any]:
    """What is measured on, and what else it was doing when measuring began."""
    here = {
        "processor": get_machine_name(torch.device("cpu")),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
    }
    gpu = {"gpu": get_machine_name(torch.device(device))} if device == "cuda" else {}
    return {**here, **gpu, "threads": torch.get_num_threads(), "torch": torch.__version__}


def in_words(found: dict[str, Any]) -> str:
    """The machine as a sentence."""
    gpu = f"{found['gpu']}, " if "gpu" in found else ""
    threads = f"{found['threads']} thread{'s' if found['threads'] > 1 else ''}"
    return (
        f"{gpu}{found['cores']} cores of an {found['processor']}, torch {found['torch']}, "
        f"{threads}; "
        f"the load was {found['load']} when measuring began."
    )


def save(name: str, found: dict[str, Any]) -> None:
    """Writes results."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def load(name: str) -> dict[str, Any] | None:
    """Results, if there are any."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def spread(values: Sequence[float]) -> str:
    """The median, and the smallest and the largest."""
    digits = 0 if statistics.median(values) >= 20 else 1
    said = [
        f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values))
    ]
    return f"{said[0]} ({said[1]}-{said[2]})"
