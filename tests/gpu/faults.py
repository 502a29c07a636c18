"""Seeds faults in GPU code, one at a time, and tells which of them the tests without a GPU catch.

Each fault is an expression of a function that is replaced by another one, in a copy of the library. The tests for such
code run until one of them fails; a fault that none of them sees has escaped. Run it by
`make test-kernels-faults`; it takes about ten minutes.

The list was made before the tests were tried on it. They caught 23 of the 24 then; tiles 256 wide
escaped, as no kernel was compiled for 256 outputs. One is now, and all 24 are caught.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
INTERPRETED = ("1", "test_kernels_interpreted.py")
COMPILED = ("0", "test_kernels_compiled.py")
STEPS = ("1", "test_steps.py")
GRAPHS = ("1", "test_graphs.py")
Run = tuple[str, str]
NUMBERS: tuple[Run, ...] = (INTERPRETED, STEPS)
"""What runs for faults that make numbers wrong."""


class Fault(NamedTuple):
    """An expression of a function, what it is replaced by, and the tests that run then."""

    function: str
    before: str
    after: str
    tests: tuple[Run, ...] = NUMBERS


FAULTS = [
    Fault("_places", "(h < height)", "(h <= height)"),
    Fault("_convolve", "place // out_width * stride - pad", "place // out_width * stride + pad"),
    Fault(
        "_convolve",
        "known = (out < outputs)[:, None] & (column < columns)",
        "known = (out < outputs)[:, None] & (column >= 0)",
    ),
    Fault("_convolve", "tl.dot(a, tl.trans(b), total, input_precision", "tl.dot(a, tl.trans(b), input_precision"),
    Fault("_convolve", "tl.program_id(1).to(tl.int64)", "tl.program_id(1)"),
    Fault("_convolve", "left + tap % tap_columns", "left + tap // tap_columns"),
    Fault("_correlate", "(client * tl.num_programs(1) + part)", "(client + part)"),
    Fault("_correlate", "tl.dot(tl.trans(a_low), b, total)", "total + 0.0"),
    Fault("_correlate", "if pad != 0:", "if pad > 1:"),
    Fault("_correlate", "row = part * share + begin", "row = part * deep + begin"),
    Fault("_correlate", "known, at_g = (row < rows)", "known, at_g = (row <= rows)"),
    Fault("_correlate", "tap % tap_columns - pad", "tap % tap_columns + pad"),
    Fault("_gather", "& (right % stride == 0)", ""),
    Fault("_gather", "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
    Fault("_halve", "whole - rounded.to(tl.float32)", "rounded.to(tl.float32) - whole"),
    Fault("_mix", "_four(x0 + k1, x1 + k2 + 4,", "_four(x0 + k1, x1 + k2 + 3,"),
    Fault("_mix", "counters + at * counter_step", "counters + at"),
    Fault("_convolved", "num_stages=3 if small or wide == 128 else 4", "num_stages=8", (COMPILED,)),
    Fault("_convolved", '128 if many and _precision(x) == "tf32" else 64', "256", (COMPILED,)),
    Fault("correlate", "torch.zeros if rows == 0 else torch.empty", "torch.empty"),
    Fault(
        "_go_on",
        "            self._graphs[size].replay()",
        "            else:\n                self._graphs[size].replay()",
        (GRAPHS,),
    ),
    Fault("run", "_load(self._carry, carry)", "self._carry = carry", (GRAPHS,)),
    Fault("_return", "(window[0], window[1])", "(window[1], window[0])", (STEPS,)),
    Fault("_mixed_on_gpu", "mix(key, counters, folding)", "mix(key, counters, 0)", (STEPS,)),
]


def seed(fault: Fault, source: Path) -> None:
    """Puts a fault into the one function of that name that has the expression."""
    found = list(_places(fault, source))
    if len(found) != 1:
        sys.exit(f"{fault.function} has {fault.before!r} in {len(found)} places; it must be one.")
    path, begin = found[0]
    text = path.read_text()
    path.write_text(text[:begin] + fault.after + text[begin + len(fault.before) :])


def _places(fault: Fault, source: Path) -> Iterator[tuple[Path, int]]:
    """Where an expression begins, in all functions of that name."""
    for path in sorted(source.rglob("*.py")):
        text = path.read_text()
        if f"def {fault.function}(" not in text:
            continue
        lines = text.splitlines(keepends=True)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name == fault.function:
                start = sum(map(len, lines[: node.lineno - 1]))
                body = "".join(lines[node.lineno - 1 : node.end_lineno])
                yield from ((path, start + each.start()) for each in re.finditer(re.escape(fault.before), body))


def caught_by(source: Path, run: Run) -> str:
    """The first test that fails, or nothing if all pass."""
    interpret, file = run
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--show-capture=no", f"tests/gpu/{file}"],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": interpret, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        sys.exit(f"{file} could not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    failed = re.search(r"^FAILED tests/gpu/\w+\.py::(\w+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else ""


def main() -> None:
    """Seeds all faults, or those with the numbers that are given, and prints what caught them."""
    chosen = [int(each) for each in sys.argv[1:]] or range(1, len(FAULTS) + 1)
    caught = 0
    for number in chosen:
        fault = FAULTS[number - 1]
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "src"
            shutil.copytree(ROOT / "src", source)
            seed(fault, source)
            found = next(filter(None, (caught_by(source, run) for run in fault.tests)), "")
        caught += bool(found)
        change = f"{fault.before.strip()} -> {fault.after.strip()}".replace("\n", " ")
        print(f"{number:2}  {fault.function:16}  {found or 'ESCAPED':60}  {change}", flush=True)
    print(f"{caught} of {len(chosen)} faults were caught.")


if __name__ == "__main__":
    main()
