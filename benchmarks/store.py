"""What a population of the size of StackOverflow costs on disk: building it, opening it, a cohort's
batches, and RAM.

Run with `python benchmarks/store.py [clients=342477] [sentences=20000000]` (135000000 sentences are
as many as there are, 5.4 GB). Sentences of 20 tokens are generated, streamed into a store where
data lies (FEDTAILOR_DATA), read by a process of its own, and deleted. A plain write of the same
bytes to the same disk is measured beside it.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedtailor import prng
from fedtailor.core.types import BatchPlan, BatchSpec
from fedtailor.data import ClientExamples
from fedtailor.data.batching import count_steps, iter_batch_indices
from fedtailor.data.dataset import ExampleSpec
from fedtailor.data.reader_blocks import Block
from fedtailor.data.store import (
    DatasetAttributes,
    Provenance,
    StoredDataset,
    build,
    make_range_split,
    open_store,
    pick_int_dtype,
    remove,
)
from fedtailor.engines.device_data import DeviceDataset

NAME = "benchmark-population"
TOKENS, VOCABULARY = 20, 10_000
POOL = 1 << 20  # different sentences
COHORT, BATCH, COHORTS, MOST = 100, 16, 30, 256
PIECE = 1 << 23


def sizes_of(clients: int, sentences: int) -> NDArray[np.int64]:
    """How many sentences everybody has: at least one, most have few, some have very many."""
    weights = np.random.default_rng(0).lognormal(0.0, 1.4, clients)
    sizes = np.floor(weights * sentences / weights.sum()).astype(np.int64)
    return np.asarray(sizes.clip(1, POOL // 2))


def generate(clients: int, sentences: int) -> Iterator[Block]:
    """A population, client by client: everybody has a stretch of a pool of random sentences."""
    draws = np.random.default_rng(1)
    pool = draws.integers(0, VOCABULARY, (POOL, TOKENS), pick_int_dtype(0, VOCABULARY - 1))
    starts = draws.integers(0, POOL // 2, clients)
    for number, (start, size) in enumerate(
        zip(starts.tolist(), sizes_of(clients, sentences).tolist(), strict=True)
    ):
        yield Block(f"user{number:08d}", {"x": pool[start : start + size]})


class Took(NamedTuple):
    """Milliseconds by the clock, and of processors at work: the same, at best, on a machine with
    nothing else to do.
    """

    clock: float
    work: float

    def rate(self, size: int) -> str:
        rate = f"{size / self.clock / 1000:.0f} MB/s"
        return f"{self.clock / 1000:.1f} s ({rate}), {self.work / 1000:.1f} s of processors"


def took(work: Callable[..., Any], *given: Any) -> Took:
    """How long something takes."""
    clock, busy = time.perf_counter(), time.process_time()
    work(*given)
    return Took(1000 * (time.perf_counter() - clock), 1000 * (time.process_time() - busy))


def middle(several: list[Took]) -> str:
    """The median, smallest and largest."""
    clock, work = ([each[kind] for each in several] for kind in range(2))
    said = [
        f"{statistics.median(each):.0f} ({min(each):.0f}-{max(each):.0f})" for each in (clock, work)
    ]
    return f"{said[0]} ms, {said[1]} ms of processors"


def drained(blocks: Iterator[Block]) -> None:
    """Generates and throws away."""
    for _ in blocks:
        pass


def plain_write(stored: StoredDataset) -> None:
    """The bytes of a store's column into one file on the same disk, then that file deleted."""
    path, column = stored.folder / "plain.bin", stored.columns["x"].reshape(-1).view(np.uint8)
    try:
        with path.open("wb") as file:
            for start in range(0, len(column), PIECE):
                file.write(column[start : start + PIECE].data)
            file.flush()
            os.fsync(file.fileno())
    finally:
        path.unlink(missing_ok=True)


def forget(stored: StoredDataset) -> None:
    """Drop the pages of a store's files from the system's cache, so that the disk is read."""
    for path in stored.folder.iterdir():
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plain_read(stored: StoredDataset) -> None:
    """Read the bytes of a store's column without looking at them."""
    with (stored.folder / "column-x.bin").open("rb", buffering=0) as file:
        while file.read(PIECE):
            pass


def use_all(stored: StoredDataset) -> None:
    """Ask for all rows of a store that was just opened, so that every block is verified."""
    column = stored.columns["x"]
    for start in range(0, len(column), PIECE // TOKENS // 2):
        column[start : start + PIECE // TOKENS // 2].sum()


def next_words(stored: StoredDataset) -> ClientExamples:
    """Everybody predicts the words that they are given, in all of their sentences or the first of
    them: one column twice, whose blocks are verified when they are first read.
    """
    x, everything = stored.columns["x"], stored.get_full_split()
    some = make_range_split(stored.offsets[:-1], np.minimum(everything.compute_sizes(), MOST))
    return ClientExamples(x, x, {"train": everything, "some": some})


def cohort(site: DeviceDataset, number: int, split: str, gather: bool) -> int:
    """Draws a cohort and lays out one epoch of batches for everybody in it; makes the batches too
    if wanted.

    As the vectorized engine does it: whoever has the most steps comes first, and leaves last.
    """
    holders, plan = site.examples, BatchPlan((BatchSpec(split, BATCH),), epochs=1)
    who = prng.choice(prng.key(0, "cohort", number), holders.count, COHORT).numpy()
    steps = count_steps(plan, holders, who)
    who, steps = who[np.argsort(-steps, kind="stable")], -np.sort(-steps)
    keys = prng.key(0, "client", number, torch.from_numpy(who))
    for step, (place,) in enumerate(iter_batch_indices(plan, holders, who, keys, int(steps[0]))):
        if gather:
            site.load_batch(place.select(slice(0, int((steps > step).sum()))))
    return int((holders.splits[split].offsets[who + 1] - holders.splits[split].offsets[who]).sum())


def resident() -> dict[str, float]:
    """MB that this process has in RAM: its own, those that are pages of files, and the most of both
    together.
    """
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {
        what[:-1]: int(rest[0]) / 1024
        for what, *rest in lines
        if what in ("RssAnon:", "RssFile:", "VmHWM:")
    }


def read() -> dict[str, str]:
    """What a process that has just begun needs for opening the store and for its cohorts."""
    torch.ones(8).sort()
    before = resident()
    opening = took(open_store, NAME)
    holders, said, own = next_words(open_store(NAME)), {}, 0.0
    site = DeviceDataset(
        holders,
        ExampleSpec((TOKENS,), (TOKENS,), VOCABULARY, 1.0, True),
        torch.float32,
        torch.device("cpu"),
    )
    for split, which in (("some", f"at most {MOST} sentences each"), ("train", "all sentences")):
        examples = [cohort(site, number, split, True) for number in range(COHORTS)]
        for gather, what in ((False, "places"), (True, "places and batches")):
            times = [took(cohort, site, number, split, gather) for number in range(COHORTS)]
            said[f"{what} of a cohort, {which}, {statistics.median(examples):.0f} in all"] = middle(
                times
            )
            own = max(own, resident()["RssAnon"])
    after = resident()
    mapped = after["RssFile"] - before["RssFile"]
    return {
        "opening": f"{opening.clock:.1f} ms",
        **said,
        "RAM of its own": f"{own:.0f} MB, {before['RssAnon']:.0f} of it Python with torch",
        "pages of the store": f"{mapped:.0f} MB, shared with the system's cache",
        "RAM at most": f"{after['VmHWM']:.0f} MB, pages of the store and of torch's files included",
    }


def measured(clients: int, sentences: int) -> None:
    """Builds, reads, prints and deletes."""
    size = int(sizes_of(clients, sentences).sum()) * TOKENS * 2
    about, made = (
        DatasetAttributes(classes=VOCABULARY, tokens=True, about="generated"),
        Provenance("benchmark"),
    )
    print(
        f"{clients} clients, {size // TOKENS // 2} sentences, {size / 1e6:.0f} MB, torch "
        f"{torch.__version__}"
    )
    print("generating:", took(drained, generate(clients, sentences)).rate(size))
    try:
        building = took(
            build, NAME, generate(clients, sentences), about, made, None, int(2.1 * size)
        )
        print("generating and building:", building.rate(size))
        stored = open_store(NAME)
        for _ in range(2):
            print("plain write:", took(plain_write, stored).rate(size))
        forget(stored)
        print("plain read from the disk:", took(plain_read, stored).rate(size))
        print("plain read from the system's cache:", took(plain_read, stored).rate(size))
        forget(stored)
        print("verifying from the disk:", took(stored.verify).rate(size))
        print("verifying from the system's cache:", took(stored.verify).rate(size))
        opened = open_store(NAME)
        print("first use of all rows:", took(use_all, opened).rate(size))
        print("second use of all rows:", took(use_all, opened).rate(size))
        reading = subprocess.run(
            [sys.executable, __file__, "read"], check=True, capture_output=True, text=True
        )
    finally:
        remove(NAME)
    for what, value in json.loads(reading.stdout).items():
        print(f"{what}: {value}")


def main(words: list[str]) -> None:
    """Measures, or is the reading process."""
    if words == ["read"]:
        print(json.dumps(read()))
        return
    options = {"clients": 342_477, "sentences": 20_000_000}
    options |= {what: int(value) for what, value in (word.split("=") for word in words)}
    measured(options["clients"], options["sentences"])


if __name__ == "__main__":
    main(sys.argv[1:])
