"""Commands as a user would type them: to go on with a run, and to make it again."""

import os
import shlex
from pathlib import Path
from typing import Any

from fedtailor.training.config import RunConfig
from fedtailor.training.overrides import parse_value


def format_resume_command(out: Path) -> str:
    """The command that goes on with a run."""
    return f"{format_program()} resume {shlex.quote(str(out))}"


def format_program() -> str:
    """What stands before a command: torchrun, if this process is one of several that it has started."""
    num_processes, num_machines = (
        int(os.environ.get("WORLD_SIZE") or 1),
        int(os.environ.get("GROUP_WORLD_SIZE") or 1),
    )
    if num_processes == 1:
        return "fedtailor"
    options = "..." if num_machines > 1 else f"--nproc-per-node {num_processes}"
    return f"torchrun {options} -m fedtailor"


def format_run_command(config: RunConfig, out: Path) -> str:
    """The command that would make this run again."""
    values = config.model_dump(mode="json")
    default = (
        RunConfig(method=config.method, data=config.data, rounds=config.rounds)
        .resolve()
        .model_dump(mode="json")
    )
    words = [
        f"method={config.method}",
        f"data={config.data}",
        f"rounds={config.rounds}",
        f"seed={config.seed}",
    ]
    for key, value in values.items():
        if key in ("method", "data", "rounds", "seed") or value == default[key]:
            continue
        if isinstance(value, dict):
            prefix = "data." if key == "data_options" else ""
            words += [
                f"{prefix}{k}={format_value(v)}"
                for k, v in value.items()
                if v != default[key].get(k)
            ]
        else:
            words.append(f"{key}={format_value(value)}")
    return f"{format_program()} run " + " ".join(
        shlex.quote(word) for word in [*words, f"out={out}"]
    )


def format_value(value: Any) -> str:
    """A value as it is written on a command line."""
    if isinstance(value, list):
        return ",".join(map(format_value, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if parse_value(str(value)) != value else str(value)
