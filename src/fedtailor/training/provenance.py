"""What a run was made with: versions, machine, commit."""

import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedtailor


def describe_version_changes(record: Mapping[str, Any]) -> list[str]:
    """A note if the run was begun with other versions than those here: the last digits may differ then."""
    then = record["versions"]
    changed = [
        f"{name} {value} for {then.get(name)}"
        for name, value in collect_versions().items()
        if value != then.get(name)
    ]
    return [f"resumed with {', '.join(changed)}: the last digits may differ"] if changed else []


def collect_versions() -> dict[str, str]:
    """What the run was made with."""
    return {
        "fedtailor": fedtailor.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
    }


def get_machine_name(device: torch.device) -> str:
    """The GPU's name, or the processor's: seconds mean nothing without it."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def get_commit() -> str | None:
    """The commit of the source tree that fedtailor is run from, with a + if it was changed; None without one."""
    here = Path(fedtailor.__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | {"LC_ALL": "C"}
        )
    except OSError:
        return None
    return result.stdout.strip() or None if result.returncode == 0 else None
