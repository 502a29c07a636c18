"""Where the package can be imported: also where a system lacks modules that only some have."""

import subprocess
import sys

HEAD = """
import builtins, importlib, pkgutil, sys

plain = builtins.__import__


def choosy(name, globals=None, *more, **others):
    importer = (globals or {}).get("__name__", "")
    if name.partition(".")[0] in LACKING and importer.partition(".")[0] == "fedtailor":
        raise ImportError(f"{importer} imports {name}")
    return plain(name, globals, *more, **others)


builtins.__import__ = choosy
sys.modules |= dict.fromkeys(LACKING - sys.stdlib_module_names)  # hidden from libraries too
import fedtailor

names = [found.name for found in pkgutil.walk_packages(fedtailor.__path__, "fedtailor.")]
need_triton = {"fedtailor.ops.conv2d_triton", "fedtailor.prng.threefry_triton"}
left_out = {"fedtailor.__main__"} | need_triton
for name in names:
    if name not in left_out:
        importlib.import_module(name)
print(len(names))
"""


def run_lacking(lacking: set[str], code: str = "") -> "subprocess.CompletedProcess[str]":
    """Import all of the package in a process where it cannot import some modules; then go on with
    more code.
    """
    whole = f"LACKING = {lacking!r}\n{HEAD}\n{code}"
    return subprocess.run(
        [sys.executable, "-c", whole], capture_output=True, text=True, check=False
    )


def test_every_module_can_be_imported_where_unix_is_not() -> None:
    done = run_lacking({"fcntl", "grp", "pwd", "resource", "termios"})
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 200


WITHOUT_SCIPY = """
import numpy as np
from torch import nn
from fedtailor.inspection.statistics import sliced_wasserstein, wasserstein

points = np.arange(6.0).reshape(3, 2)
distance = wasserstein(points[:, :1], points[:, 1:])
print(round(distance, 9), abs(round(sliced_wasserstein(points, points), 9)))
data = fedtailor.digits(clients=12)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
fedtailor.fit("fedsim", model, data, rounds=1, cohort=2, finetune_epochs=1)
try:
    wasserstein(points, points)
except fedtailor.InputError as problem:
    print(problem)
"""


def test_without_scipy_only_exact_distances_are_missing() -> None:
    done = run_lacking({"scipy"}, WITHOUT_SCIPY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == [
        "1.0 0.0",
        "The exact Wasserstein distance needs the package scipy: pip install "
        "'fedtailor[analysis]'.",
    ]


def test_a_module_that_is_lacking_is_noticed() -> None:
    done = run_lacking({"hashlib"})
    assert done.returncode == 1
    assert "imports hashlib" in done.stderr
