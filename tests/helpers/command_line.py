"""The command line in this process: what a command prints, and with which code it ends."""

import sys
from typing import NamedTuple

import pytest

from fedtailor import cli


class Printed(NamedTuple):
    """What a command leaves."""

    code: int
    out: str
    err: str


def call(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *words: str
) -> Printed:
    """Run a command; nothing raw may reach the terminal, and an error is one line."""
    monkeypatch.setattr(sys, "argv", ["fedtailor", *words])
    code = _run_main()
    out, err = capfd.readouterr()
    for letter in out + err:
        assert letter.isprintable() or letter == "\n", repr(letter)
    assert "Traceback" not in err
    if code:
        assert code == 2
        assert err.count("\n") == 1, err
    else:
        assert err == ""
    return Printed(code, out, err)


def _run_main() -> int:
    try:
        cli.main()
    except SystemExit as problem:
        return int(problem.code or 0)
    return 0
