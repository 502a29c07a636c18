"""A seeded short run of the fuzzers, and what they themselves promise: verdicts, equal cases for
equal seeds, and damage of every kind.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fuzzing.cases import StrategyDrawer, make_draws
from fuzzing.known_faults import CASES
from fuzzing.mutations import FileDamage, draw_damage, mutate_bytes
from fuzzing.results import drop_file, find_difference, summarize_run
from fuzzing.strategies import calls, specifications

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cases are forked and traced")
ROOT = Path(__file__).parents[2]
CASES_PER_TARGET = 12
TEXT = b'{"seconds": 1.5, "lr": 0.1, "names": ["a", "b"], "is_done": true}\n'


def run_python(args: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run Python beside the fuzzers: a process of its own, as cases are forked."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "fuzz")])
    return subprocess.run(
        [sys.executable, *args],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_seeded_short_run_finds_nothing() -> None:
    words = ["tools/fuzz.py", "--cases", str(CASES_PER_TARGET), "--seed", "0"]
    run = run_python([str(ROOT / words[0]), *words[1:]])
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{5 * CASES_PER_TARGET} cases" in run.stdout
    worked = [int(count) for count in re.findall(r"(\d+) ok", run.stdout)]
    assert len(worked) == 5, run.stdout  # of no target all cases are refused
    assert "0 with a finding" in run.stdout


def test_verdicts_on_cases_with_known_faults(tmp_path: Path) -> None:
    run = run_python(["-m", "fuzzing.known_faults", str(tmp_path)])
    assert run.stderr == ""
    verdicts = [json.loads(line) for line in run.stdout.splitlines()]
    assert [kind for kind, _, _ in verdicts] == [kind for kind, _ in CASES]
    places = {place for _, place, _ in verdicts}
    assert "outside of the library: MemoryError" in places
    assert "outside of the library: IndexError" in places
    assert "SIGSEGV in an unknown place" in places


@pytest.mark.parametrize("strategy", [specifications(), calls()], ids=["words", "calls"])
def test_equal_numbers_of_cases_give_equal_cases_and_others_others(strategy: object) -> None:
    drawn = [
        [repr(drawer.draw(make_draws(seed, "target", number))) for number in range(30)]
        for drawer, seed in (
            (StrategyDrawer(strategy), 0),  # type: ignore[arg-type]
            (StrategyDrawer(strategy), 0),  # type: ignore[arg-type]
            (StrategyDrawer(strategy), 1),  # type: ignore[arg-type]
        )
    ]
    assert drawn[0] == drawn[1]
    assert len({*drawn[0], *drawn[2]}) > 50


def test_damage_is_of_every_kind_and_equal_for_equal_draws(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "some.json").write_bytes(TEXT)
    (tmp_path / "folder" / "some.bin").write_bytes(np.arange(40, dtype=np.float32).tobytes())
    damages = [draw_damage(tmp_path / "folder", make_draws(0, "x", n)) for n in range(600)]
    again = [draw_damage(tmp_path / "folder", make_draws(0, "x", n)) for n in range(600)]
    assert damages == again
    for kind in ("flipped", "overwritten", "cut", "left out", "put in", "added", "swapped"):
        assert any(kind in damage.description for damage in damages), kind
    for kind in ("repeated", "emptied", "digit", "JSON value", "another file"):
        assert any(kind in damage.description for damage in damages), kind
    assert {damage.kind for damage in damages} > {"changed", "removed", "a folder"}
    changed = [damage for damage in damages if damage.kind == "changed"]
    originals = {path.name: path.read_bytes() for path in (tmp_path / "folder").iterdir()}
    num_equal = sum(damage.content == originals[damage.file] for damage in changed)
    assert num_equal < len(changed) / 50


def test_damage_is_done_and_seen(tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    for kind in ("changed", "removed", "a loop of links", "a folder"):
        file.write_bytes(TEXT)
        damage = FileDamage(file.name, kind, TEXT[:-3], "")
        assert not damage.is_in(tmp_path)
        damage.apply(tmp_path)
        assert damage.is_in(tmp_path)
        if file.is_dir() and not file.is_symlink():
            file.rmdir()
        file.unlink(missing_ok=True)


def test_every_byte_can_be_flipped() -> None:
    changed = set()
    content = bytes(50)
    for number in range(3000):
        mutated = mutate_bytes(content, make_draws(0, "bytes", number)).content
        if len(mutated) == len(content):
            changed |= {index for index, byte in enumerate(mutated) if byte}
    assert changed == set(range(50))


def test_a_difference_is_named_and_what_differs_between_equal_runs_is_none(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "record.json").write_text('{"seconds": 1, "rounds": [{"loss": 0.5}]}')
    before = summarize_run(tmp_path)
    (tmp_path / "record.json").write_text('{"seconds": 2, "rounds": [{"loss": 0.5}]}')
    assert find_difference(before, summarize_run(tmp_path)) == ""
    (tmp_path / "record.json").write_text('{"seconds": 2, "rounds": [{"loss": 0.6}]}')
    assert find_difference(before, summarize_run(tmp_path)) == "record.rounds[].loss"
    (tmp_path / "record.json").write_text('{"seconds": 1, "rounds": [{"loss": 0.5}, {}]}')
    assert find_difference(before, summarize_run(tmp_path)) == "record.rounds"
    (tmp_path / "record.json").write_text('{"seconds": 1, "rounds": [{"loss": 0.5}]}')
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"other weights")
    after = summarize_run(tmp_path)
    assert find_difference(before, after).startswith("files.")
    assert find_difference(drop_file(before, model), drop_file(after, model)) == ""
