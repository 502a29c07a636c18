"""Runs a comparison in several processes, each run alone on one thread; `fedtailor compare` then shows the table.

    python studies/parallel.py COMPARISON.toml OUT JOBS [KEY=VALUE ...]

It does what `fedtailor compare COMPARISON.toml out=OUT` does, with the same results: runs do not depend on each other.
"""

import os
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from fedtailor.run.spec import Spec, read_comparison


def work(spec: Spec, place: Path) -> str:
    """Starts a run, or goes on with it."""
    import torch

    from fedtailor.run.session import resume, start

    torch.set_num_threads(1)
    began = time.perf_counter()
    try:
        outcome = resume(place) if (place / "spec.json").exists() else start(spec, place)
    except Exception:
        return f"{place.name}: {traceback.format_exc().splitlines()[-1]}"
    return f"{place.name}: {'finished' if outcome.finished else 'stopped'} in {time.perf_counter() - began:.0f} s"


def run_all(runs: list[tuple[Spec, Path]], jobs: int) -> None:
    """All runs, so many at a time."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(work, *run) for run in runs]):
            print(done.result(), flush=True)


def main() -> None:
    file, out, jobs, *words = sys.argv[1:]
    specs = read_comparison([file, *words]).with_baselines().specs()
    run_all([(spec, Path(out) / f"{spec.label or spec.method}-seed{spec.seed}") for spec in specs], int(jobs))


if __name__ == "__main__":
    main()
