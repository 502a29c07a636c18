"""Where the package can be imported: also where a system lacks modules that only some have."""

import subprocess
import sys

HEAD = """
import builtins, importlib, pkgutil

plain = builtins.__import__


def choosy(name, given=None, *more):
    importer = (given or {}).get("__name__", "")
    if name.partition(".")[0] in LACKING and importer.partition(".")[0] == "fedtailor":
        raise ImportError(f"{importer} imports {name}")
    return plain(name, given, *more)


builtins.__import__ = choosy
import fedtailor

names = [found.name for found in pkgutil.walk_packages(fedtailor.__path__, "fedtailor.")]
for name in names:
    if name != "fedtailor.__main__":
        importlib.import_module(name)
print(len(names))
"""


def run_lacking(lacking: set[str], code: str = "") -> "subprocess.CompletedProcess[str]":
    """Import all of the package in a process where it cannot import some modules; then go on with more code."""
    whole = f"LACKING = {lacking!r}\n{HEAD}\n{code}"
    return subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=False)


def test_every_module_can_be_imported_where_unix_is_not() -> None:
    done = run_lacking({"fcntl", "grp", "pwd", "resource", "termios"})
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 200


def test_a_module_that_is_lacking_is_noticed() -> None:
    done = run_lacking({"hashlib"})
    assert done.returncode == 1
    assert "imports hashlib" in done.stderr
