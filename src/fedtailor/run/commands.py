"""Commands as a user would type them: to go on with a run, and to make it again."""

import os
import shlex
from pathlib import Path
from typing import Any

from fedtailor.run.spec import Spec, value_of


def resume_command(out: Path) -> str:
    """The command that goes on with a run."""
    return f"{program()} resume {shlex.quote(str(out))}"


def program() -> str:
    """What stands before a command: torchrun, if this process is one of several that it has started."""
    several, machines = int(os.environ.get("WORLD_SIZE") or 1), int(os.environ.get("GROUP_WORLD_SIZE") or 1)
    if several == 1:
        return "fedtailor"
    options = "..." if machines > 1 else f"--nproc-per-node {several}"
    return f"torchrun {options} -m fedtailor"


def repeat_command(spec: Spec, out: Path) -> str:
    """The command that would make this run again."""
    plain = spec.model_dump(mode="json")
    default = Spec(method=spec.method, data=spec.data, rounds=spec.rounds).resolved().model_dump(mode="json")
    words = [f"method={spec.method}", f"data={spec.data}", f"rounds={spec.rounds}", f"seed={spec.seed}"]
    for key, value in plain.items():
        if key in ("method", "data", "rounds", "seed") or value == default[key]:
            continue
        if isinstance(value, dict):
            prefix = "data." if key == "data_options" else ""
            words += [f"{prefix}{k}={word_of(v)}" for k, v in value.items() if v != default[key].get(k)]
        else:
            words.append(f"{key}={word_of(value)}")
    return f"{program()} run " + " ".join(shlex.quote(word) for word in [*words, f"out={out}"])


def word_of(value: Any) -> str:
    """A value as it is written on a command line."""
    if isinstance(value, list):
        return ",".join(map(word_of, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if value_of(str(value)) != value else str(value)
