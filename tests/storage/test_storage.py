"""Files and folders that are whole or not there, and locks, against real processes and faults at
every touch.
"""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedtailor.errors import InputError
from fedtailor.storage.atomic import (
    explain_disk_errors,
    replace_folder,
    scratch_folder,
    write_bytes,
)
from fedtailor.storage.locks import hold_lock

HOLD = """
import sys, time
from pathlib import Path
from fedtailor.storage.locks import hold_lock
with hold_lock(Path(sys.argv[1])) as sure:
    print(sure, flush=True)
    sys.stdin.read()
"""


def holder(path: Path) -> "subprocess.Popen[str]":
    """A process that has a lock until its input ends."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "True\n"
    return child


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_a_lock_is_for_one_process_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as child:
        with pytest.raises(InputError, match=r"^taken$"), hold_lock(path, "taken"):
            pass
        child.communicate()
    with hold_lock(path, "taken") as sure:
        assert sure
        with pytest.raises(InputError, match=r"^taken$"), hold_lock(path, "taken"):
            pass
    assert names(tmp_path) == []


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as child:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert names(tmp_path) == ["lock"]
    with hold_lock(path, "taken") as sure:
        assert sure
    assert names(tmp_path) == []


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as child:
        waiting = subprocess.Popen(
            [sys.executable, "-c", HOLD.replace("[1])", "[1]), wait=True"), str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1)
        child.communicate()
    assert waiting.communicate()[0] == b"True\n"
    assert waiting.returncode == 0


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_disk_without_locks_is_worked_on_all_the_same(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(handle: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", unknown)
    with hold_lock(tmp_path / "lock", "taken") as sure:
        assert not sure
    assert names(tmp_path) == []


def test_a_place_that_cannot_be_locked_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises((FileExistsError, NotADirectoryError)),
        hold_lock(tmp_path / "file" / "lock"),
    ):
        pass


def write_file(place: Path) -> None:
    write_bytes(place / "made", b"new")


def write_folder(place: Path) -> None:
    with replace_folder(place / "made") as fresh:
        (fresh / "file").write_bytes(b"new")


def content(path: Path) -> bytes | None:
    file = path / "file" if path.is_dir() else path
    return file.read_bytes() if file.exists() else None


@pytest.mark.parametrize("name", ["fsync", "replace", "mkdir"])
@pytest.mark.parametrize("write", [write_file, write_folder])
def test_a_fault_leaves_the_old_or_the_new_or_nothing(
    name: str, write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, outcomes = getattr(os, name), []
    for at in range(4):
        place = tmp_path / str(at)
        place.mkdir()
        write(place)
        path = place / "made" / "file" if (place / "made").is_dir() else place / "made"
        path.write_bytes(b"old")
        count = iter(range(1000))

        def faulty(*given: object, at: int = at, count: "object" = count, **more: object) -> object:
            if next(count) == at:  # type: ignore[call-overload]
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*given, **more)

        with monkeypatch.context() as patched:
            patched.setattr(os, name, faulty)
            try:
                write(place)
            except OSError:
                outcomes.append(content(place / "made"))
            else:
                assert content(place / "made") == b"new"
        assert [each for each in names(place) if each not in ("made", ".made.previous")] == []
        write(place)
        assert content(place / "made") == b"new"
        assert names(place) == ["made"]
    assert set(outcomes) <= {b"old", b"new", None}
    assert outcomes or (name, write) == ("mkdir", write_file)


def test_a_scratch_folder_is_empty_and_goes(tmp_path: Path) -> None:
    with scratch_folder(tmp_path / "made") as fresh:
        (fresh / "file").write_bytes(b"half")
    assert names(tmp_path) == []


def test_trouble_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught, explain_disk_errors(tmp_path, "mend that."):
        write_bytes(tmp_path / "none" / "file", b"")
    assert (
        str(caught.value)
        == f"'{tmp_path}/none/file' could not be written: No such file or directory; mend that."
    )
    with pytest.raises(InputError) as caught, explain_disk_errors(tmp_path, "mend that.", "toy: "):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert (
        str(caught.value)
        == f"toy: '{tmp_path}' could not be written: No space left on device; mend that."
    )
