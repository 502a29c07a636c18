"""List the functions that one round of FedAvg enters, in order of their first visit.

    python tools/walk.py [sequential|vectorized] [--count]

Counts the functions, their files, the changes of file and the returns to a file that was left
before, all of them and without keys and batches (`prng`, `data/batching.py`, `data/shuffling.py`),
which every engine shares, and the method's own file. Lambdas, comprehensions and generated code are
left out.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

import fedtailor
from fedtailor import digits
from fedtailor.engines import factory
from fedtailor.models import mlp
from fedtailor.training.context import prepare_context
from fedtailor.training.loop import run_rounds

ROOT = Path(fedtailor.__file__).parent
SHARED = ("prng/", "data/batching.py", "data/shuffling.py", "methods/fedavg.py")
"""What every engine goes through: keys, batches and the method."""


class Visit(NamedTuple):
    """The first visit of a function."""

    depth: int
    file: str
    line: int
    name: str


class Recorder:
    """Record first visits of functions of the library; `visits` are in order."""

    def __init__(self) -> None:
        self.visits: list[Visit] = []
        self._seen: set[tuple[str, int]] = set()
        self._depth = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Handle an event of `sys.setprofile`."""
        path = Path(frame.f_code.co_filename)
        name = frame.f_code.co_qualname
        if (
            not path.is_relative_to(ROOT)
            or "<lambda>" in name
            or "comp>" in name
            or "<genexpr>" in name
        ):
            return
        if event == "return":
            self._depth -= 1
        if event != "call":
            return
        key = (str(path), frame.f_code.co_firstlineno)
        if key not in self._seen:
            self._seen.add(key)
            file = str(path.relative_to(ROOT))
            self.visits.append(
                Visit(self._depth, file, frame.f_code.co_firstlineno, name.replace("<locals>.", ""))
            )
        self._depth += 1


def trace_round(engine_name: str) -> list[Visit]:
    """Return the first visits of one round on the embedded digits, with all modules imported."""
    data = digits(clients=12)
    model = mlp(64, (16,), 10)
    context = prepare_context("fedavg", model, data, rounds=1, cohort=3)
    engine = factory.make_engine(context, engine_name)
    rounds = run_rounds(context, engine, context.init_server_state(), 3)
    recorder = Recorder()
    sys.setprofile(recorder)
    try:
        next(rounds)
    finally:
        sys.setprofile(None)
    return recorder.visits


def count_changes(visits: list[Visit]) -> tuple[int, int]:
    """Return the changes of file from visit to visit, and those back to a file that was left
    before.
    """
    changes = 0
    returns = 0
    left: set[str] = set()
    current = visits[0].file
    for visit in visits[1:]:
        if visit.file == current:
            continue
        changes += 1
        left.add(current)
        returns += visit.file in left
        current = visit.file
    return changes, returns


def describe(visits: list[Visit]) -> Iterator[str]:
    """Yield the counts, of all visits and without what every engine shares."""
    own = [visit for visit in visits if not visit.file.startswith(SHARED)]
    for title, some in (("all", visits), ("without keys, batches and the method", own)):
        changes, returns = count_changes(some)
        files = len({visit.file for visit in some})
        counts = f"{len(some)} functions in {files} files"
        yield f"{title}: {counts}, {changes} changes of file, {returns} of them back"


def main() -> None:
    """Print the walk and its counts."""
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    torch.set_num_threads(1)
    visits = trace_round(words[0] if words else "sequential")
    if "--count" not in sys.argv:
        for visit in visits:
            print(f"{'  ' * visit.depth}{visit.file}:{visit.line} {visit.name}")
    print("\n".join(describe(visits)))


if __name__ == "__main__":
    main()
