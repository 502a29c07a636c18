"""Seeds faults in GPU code, one at a time, and tells which of them the tests without a GPU catch.

Each fault is an expression of a function that is replaced by another one, in a copy of the library.
The tests for such code run until one of them fails; a fault that none of them sees has escaped. Run
it by `make test-kernels-faults`; it takes about ten minutes. Arguments are numbers of faults, or
`--list`, which says where each fault would be and stops.

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
    Fault("_tap_offsets", "(h < height)", "(h <= height)"),
    Fault(
        "_conv2d_kernel", "pixel // out_width * stride - pad", "pixel // out_width * stride + pad"
    ),
    Fault(
        "_conv2d_kernel",
        "w_mask = (out < outputs)[:, None] & (column < columns)",
        "w_mask = (out < outputs)[:, None] & (column >= 0)",
    ),
    Fault(
        "_conv2d_kernel",
        "tl.dot(a, tl.trans(b), acc, input_precision",
        "tl.dot(a, tl.trans(b), input_precision",
    ),
    Fault("_conv2d_kernel", "tl.program_id(1).to(tl.int64)", "tl.program_id(1)"),
    Fault("_conv2d_kernel", "left + tap % tap_columns", "left + tap // tap_columns"),
    Fault(
        "_conv2d_grad_weight_kernel", "(client * tl.num_programs(1) + split)", "(client + split)"
    ),
    Fault("_conv2d_grad_weight_kernel", "tl.dot(tl.trans(a_low), b, acc)", "acc + 0.0"),
    Fault("_conv2d_grad_weight_kernel", "if pad != 0:", "if pad > 1:"),
    Fault(
        "_conv2d_grad_weight_kernel",
        "row = split * K_PER_SPLIT + begin",
        "row = split * BLOCK_K + begin",
    ),
    Fault("_conv2d_grad_weight_kernel", "g_mask = (row < rows)", "g_mask = (row <= rows)"),
    Fault("_conv2d_grad_weight_kernel", "tap % tap_columns - pad", "tap % tap_columns + pad"),
    Fault("_col2im_kernel", "& (right % stride == 0)", ""),
    Fault("_col2im_kernel", "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
    Fault("_split_bf16_kernel", "value - rounded.to(tl.float32)", "rounded.to(tl.float32) - value"),
    Fault(
        "_threefry_kernel",
        "_four_rounds(x0 + k1, x1 + k2 + 4,",
        "_four_rounds(x0 + k1, x1 + k2 + 3,",
    ),
    Fault("_threefry_kernel", "counters + at * counter_step", "counters + at"),
    Fault(
        "_launch_conv2d",
        "num_stages=num_stages",
        "num_stages=8",
        (COMPILED,),
    ),
    Fault(
        "_launch_conv2d",
        "max_block_n = 128",
        "max_block_n = 256",
        (COMPILED,),
    ),
    Fault("triton_conv2d_grad_weight", "torch.zeros if rows == 0 else torch.empty", "torch.empty"),
    Fault(
        "_run_step",
        "            self._graphs[size].replay()",
        "            else:\n                self._graphs[size].replay()",
        (GRAPHS,),
    ),
    Fault(
        "run",
        "_copy_into(self._buffers.carry, carry)",
        "self._buffers = self._buffers._replace(carry=carry)",
        (GRAPHS,),
    ),
    Fault(
        "_conv2d_grad_input_op",
        "(stride, pad)",
        "(pad, stride)",
        (STEPS,),
    ),
    Fault(
        "_threefry_cuda",
        "triton_threefry(key, counters, domain)",
        "triton_threefry(key, counters, 0)",
        (STEPS,),
    ),
]


def find(fault: Fault, source: Path) -> tuple[Path, int]:
    """Where the expression begins in the one function of that name that has it."""
    found = list(_places(fault, source))
    if len(found) != 1:
        sys.exit(f"{fault.function} has {fault.before!r} in {len(found)} places; it must be one.")
    return found[0]


def seed(fault: Fault, source: Path) -> None:
    """Puts a fault into its place."""
    path, begin = find(fault, source)
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
                yield from (
                    (path, start + each.start())
                    for each in re.finditer(re.escape(fault.before), body)
                )


def caught_by(source: Path, run: Run) -> str:
    """The first test that fails, or nothing if all pass."""
    interpret, file = run
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-p",
            "no:cacheprovider",
            "--show-capture=no",
            f"tests/gpu/{file}",
        ],
        cwd=ROOT,
        env=os.environ
        | {"TRITON_INTERPRET": interpret, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
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
    places = [find(fault, ROOT / "src") for fault in FAULTS]
    if sys.argv[1:] == ["--list"]:
        for number, (fault, (path, _)) in enumerate(zip(FAULTS, places, strict=True), 1):
            print(f"{number:2}  {path.relative_to(ROOT)}  {_told(fault)}")
        return
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
        print(f"{number:2}  {found or 'ESCAPED':60}  {_told(fault)}", flush=True)
    print(f"{caught} of {len(chosen)} faults were caught.")


def _told(fault: Fault) -> str:
    """A fault in a line."""
    return f"{fault.function}: {fault.before.strip()} -> {fault.after.strip()}".replace("\n", " ")


if __name__ == "__main__":
    main()
