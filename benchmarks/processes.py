"""Ways to train, each a process in its own environment that trains when it is told to: see
peers/protocol.py.
"""

import json
import os
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from peers.protocol import MARK, Weights

BENCHMARKS = Path(__file__).parent
OURS, LOOP = "ours", "dataloader"


def python_of(way: str) -> Path | None:
    """The interpreter that runs a way, if it is there: its own, or this one if that has the
    package.
    """
    own = BENCHMARKS.parent / ".venv-peers" / way
    if way.startswith((OURS, LOOP)):
        return Path(sys.executable)
    if (own / "made").exists():
        return own / "bin" / "python"
    return Path(sys.executable) if find_spec(way) else None


class Process:
    """A way at work, which trains when told and is asleep otherwise."""

    def __init__(self, way: str, work: Path, device: str) -> None:
        self.way, self.times, self.end = way, list[float](), work.with_name(f"{way}.npz")
        found = os.pathsep.join(filter(None, (str(BENCHMARKS), os.environ.get("PYTHONPATH"))))
        options = {
            "PYTHONPATH": found,
            "FLWR_TELEMETRY_ENABLED": "0",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "0",
        }
        module, _, how = way.partition("-")
        options |= {"OMP_NUM_THREADS" if how.isdigit() else "PRECISION": how} if how else {}
        command = [str(python_of(way)), "-m", f"peers.{module}", str(work), str(self.end), device]
        self._log = self.end.with_suffix(".log").open("w+")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | options,
        )
        self.versions: dict[str, str] = {}

    def wait_until_ready(self) -> None:
        """Waits until it has read its work."""
        self.versions = self._answer()["versions"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                answer: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return answer
        self._log.seek(0)
        raise SystemExit(f"{self.way} stopped:\n{self._log.read()[-3000:]}")

    def tell(self, rounds: int) -> None:
        """Has it train."""
        assert self._process.stdin is not None
        with suppress(
            BrokenPipeError
        ):  # if it has stopped, it gives no answer, and why is said there
            self._process.stdin.write(f"{rounds}\n")
            self._process.stdin.flush()

    def told(self) -> float:
        """Milliseconds that a round took."""
        return float(self._answer()["ms"])

    def finish(self) -> tuple[int, Weights]:
        """The steps taken, and the weights at the end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        steps = int(self._answer()["steps"])
        with np.load(self.end) as file:
            return steps, {name: file[name] for name in file.files}

    def close(self) -> None:
        """Lets the process end, or ends it."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()
