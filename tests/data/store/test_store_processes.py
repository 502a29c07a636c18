"""Stores that several processes build and read at once, and builders that are killed."""

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedtailor.data.reader_blocks import Block
from fedtailor.data.store import build, open_store
from fedtailor.errors import InputError
from stores import MADE, NO_FACTS, blocks_of, left_behind, toy


def test_one_builds_while_another_is_refused_and_other_names_go_on(place: Path) -> None:
    def nested() -> Iterator[Block]:
        yield from blocks_of([3])
        with pytest.raises(
            InputError,
            match=r"toy: another process is at work on .*toy'; wait until it has finished",
        ):
            toy()
        with pytest.raises(InputError, match="there is no such data set"):
            open_store("toy")
        toy(name="other")
        assert left_behind(place) == [".toy.lock", ".toy.new", "other"]

    assert build("toy", nested(), NO_FACTS, MADE).num_rows == 3
    assert left_behind(place) == ["other", "toy"]


HEAD = """
import os, random, signal, sys, time
import numpy as np
from collections.abc import Iterator
from pathlib import Path
from fedtailor.data.reader_blocks import Block
from fedtailor.data.store import *
from fedtailor.data.store import columns
from fedtailor.data.store.manifest import get_stores_dir
from fedtailor.errors import InputError
MADE = Provenance("1")
NO_FACTS = DatasetAttributes()
"""


def run_script(script: str) -> str:
    """What a script prints that has stores, `toy`, `blocks_of` and `left_behind`, in a process
    without torch.
    """
    given = "\n".join(inspect.getsource(function) for function in (blocks_of, toy, left_behind))
    whole = "\n".join([HEAD, given, script])
    done = subprocess.run(
        [sys.executable, "-c", whole], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


KILLED = """
found = {"whole": 0, "none": 0, "begun": 0}
random.seed(0)
place = get_stores_dir().parent
columns._BUFFER_BYTES = 1 << 12
for attempt in range(40):
    if attempt % 4 == 0:
        remove("toy")
    child = os.fork()
    if child == 0:
        for value in range(10_000):
            facts = DatasetAttributes(about=str(value))
            build("toy", blocks_of([200] * 30, value), facts, MADE)
    time.sleep(random.uniform(0, 0.15))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found["begun"] += ".toy.new" in left_behind(place)
    try:
        stored = open_store("toy")
    except InputError as problem:
        assert "there is no such data set" in str(problem), problem
        found["none"] += 1
    else:
        stored.verify()
        assert stored.num_rows == 6000
        assert str(int(stored.columns["x"][0, 0])) == stored.attributes.about
        found["whole"] += 1
    if attempt % 3 == 0:
        toy(name="another")
        assert set(left_behind(place)) <= {"another", "toy"}, left_behind(place)
print(*found.values())
"""


def test_a_killed_build_leaves_a_whole_store_or_none() -> None:
    whole, none, begun = map(int, run_script(KILLED).split())
    assert whole + none == 40
    assert whole > 0
    assert begun > 0


REPLACED = """
from fedtailor.storage import atomic
toy([5, 6], value=1)
calls = {"rename": 0, "remove": 0}
renamed, removed = Path.replace, atomic.shutil.rmtree
def die(kind, at):
    calls[kind] += 1
    if calls[kind] > at:
        os._exit(9)
def build_and_die(kind, at):
    child = os.fork()
    if child == 0:
        calls.update(rename=0, remove=0)
        def replace(path, target):
            die("rename", at) if kind == "rename" else None
            return renamed(path, target)
        def rmtree(path, *args, **kwargs):
            die("remove", at) if kind == "remove" else None
            return removed(path, *args, **kwargs)
        Path.replace, atomic.shutil.rmtree = replace, rmtree
        toy([7, 8, 9], value=2)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
seen = set()
for kind, most in (("rename", 3), ("remove", 9)):
    for at in range(most + 1):
        toy([5, 6], value=1)
        code = build_and_die(kind, at)
        assert list_stores() == ["toy"], (kind, at, code)
        stored = open_store("toy")
        stored.verify()
        value = int(stored.columns["x"][0, 0])
        assert (value, stored.num_rows) in ((1, 11), (2, 24))
        seen.add((code, value))
        toy(name="another")
        remove("another")
        assert left_behind(get_stores_dir().parent) == ["toy"], (kind, at)
print(*sorted(seen))
"""


def test_a_store_whose_replacing_is_killed_is_the_old_or_the_new_one() -> None:
    """At every rename and every removal of the end: the old one, the new one, or all done."""
    assert run_script(REPLACED).strip() == "(0, 2) (9, 1) (9, 2)"


BESIDE = """
toy([1000, 2000], "read")
ready, go = os.pipe(), os.pipe()
def waits():
    yield from blocks_of([5])
    os.write(ready[1], b"!")
    os.read(go[0], 1)
    yield Block("last", next(blocks_of([5])).columns)
builder = os.fork()
if builder == 0:
    build("toy", waits(), NO_FACTS, MADE)
    os._exit(0)
os.read(ready[0], 1)
try:
    toy()
    sys.exit("the second builder was let in")
except InputError as problem:
    assert "another process is at work" in str(problem), problem
readers = []
for _ in range(2):
    readers.append(os.fork())
    if not readers[-1]:
        for _ in range(20):
            stored = open_store("read")
            stored.verify()
            np.testing.assert_array_equal(stored.columns["x"][:, 0], np.arange(3000))
        os._exit(0)
for reader in readers:
    assert os.waitpid(reader, 0)[1] == 0
os.write(go[1], b"!")
assert os.waitpid(builder, 0)[1] == 0
assert open_store("toy").num_rows == 10
print(*left_behind(get_stores_dir().parent))
"""


def test_one_process_builds_another_is_refused_and_two_read() -> None:
    assert run_script(BESIDE).split() == ["read", "toy"]
