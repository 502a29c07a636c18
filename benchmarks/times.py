"""Whether the times that a command prints add up to the wall clock.

    python benchmarks/times.py [KEY=VALUE ...]

Runs a small comparison as a user would, with these keys besides, and compares three figures: the
wall clock of the process, what the command says that it took, and the sum of what the records of
its runs say, which is the command's part "checks and runs" but for what comes before the first one.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fedtailor.training.run_dir import find_runs

COMPARISON = ("local", "fedavg", "fedsim", "seeds=0,1", "rounds=20", "compile=false")


def main() -> None:
    """Run the comparison, and print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "fedtailor", "compare", *COMPARISON, *sys.argv[1:]]
        started_at = time.perf_counter()
        done = subprocess.run([*command, f"out={out}"], capture_output=True, text=True, check=True)
        wall_clock = time.perf_counter() - started_at
        all_times = [run_dir.read_record().times for run_dir in find_runs(out)]
    records = sum(times.total for times in all_times if times is not None)
    said = re.search(
        r"^The command took ([\d.]+) s: .*checks and runs ([\d.]+).*", done.stdout, re.MULTILINE
    )
    assert said is not None, done.stdout
    command_seconds = float(said[1])
    runs_seconds = float(said[2])
    print(said[0])
    print(
        f"The command says {command_seconds:.1f} s, which is {command_seconds / wall_clock:.1%} of "
        f"the wall clock, {wall_clock:.1f} s."
    )
    print(
        f"The records of its runs add up to {records:.1f} s, which is {records / runs_seconds:.1%} "
        f"of what it says that they took, {runs_seconds:.1f} s."
    )


if __name__ == "__main__":
    main()
