"""The versions, the machine and the commit that a run was made with."""

import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

import fedtailor


def describe_version_changes(versions: Mapping[str, str]) -> list[str]:
    """Return a note if a run began with other versions, so that last digits may differ."""
    changed = [
        f"{name} {version} for {versions.get(name)}"
        for name, version in collect_versions().items()
        if version != versions.get(name)
    ]
    if not changed:
        return []
    return [f"resumed with {', '.join(changed)}: the last digits may differ"]


def collect_versions() -> dict[str, str]:
    """Return the versions of what computes, by name."""
    return {
        "fedtailor": fedtailor.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
    }


def get_machine_name(device: torch.device) -> str:
    """Return the name of the GPU or of the processor, without which seconds mean nothing."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def get_commit() -> str | None:
    """Return the commit of the source tree that fedtailor runs from, with a + if it has changes.

    None if there is no source tree.
    """
    here = Path(fedtailor.__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | {"LC_ALL": "C"}
        )
    except OSError:
        return None
    return result.stdout.strip() or None if result.returncode == 0 else None
