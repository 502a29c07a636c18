"""Files and options that a user might plausibly pass: each works or is refused in one sentence."""

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.data import FederatedDataset, from_arrays, from_npz, load, synthetic
from fedtailor.data.examples import Array
from fedtailor.errors import InputError
from fedtailor.storage import memory
from sentences import assert_refused

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)).astype(np.float32)
BYTES = RNG.integers(0, 256, (60, 3))
Y = RNG.integers(0, 3, 60)
CLIENT = np.arange(60) % 6
NAMES = np.array(["\u202eab", "\x1b[31mred", "a\nb", "", "[bold]", "\ud800"])


class Exploit:
    """An object that writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def write(path: Path, arrays: dict[str, Any]) -> Path:
    columns: dict[str, Any] = {"x": X, "y": Y, "client": CLIENT, **arrays}
    columns = {name: array for name, array in columns.items() if array is not None}
    np.savez(path, **columns)
    return path


WORKING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "x of uint64 from 2**63 on": ({"x": np.full((60, 3), 2**63, np.uint64)}, {}),
    "labels of uint64": ({"y": Y.astype(np.uint64)}, {"server": 0.1}),
    "labels of uint16": ({"y": Y.astype(np.uint16)}, {}),
    "tokens of uint64": ({"x": BYTES.astype(np.uint64)}, {"tokens": True}),
    "bool x": ({"x": X > 0}, {}),
    "half precision": ({"x": X.astype(np.float16)}, {}),
    "columns in Fortran's order": ({"x": np.asfortranarray(X)}, {}),
    "an extra array": ({"extra": np.arange(3)}, {}),
    "clients of uint64": ({"client": CLIENT.astype(np.uint64) + np.uint64(2**63)}, {}),
    "a client with one example": ({"client": np.where(np.arange(60) == 7, 99, CLIENT)}, {}),
    "one client": ({"client": np.zeros(60, int)}, {}),
    "no server": ({}, {"server": None}),
    "a huge seed": ({}, {"seed": 2**70}),
}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "labels of 2**63": (
        {"y": np.full(60, 2**63, np.uint64)},
        {},
        "labels must be numbers of classes from 0 to at most 2147483647, got 9223372036854775808",
    ),
    "labels of 2**63, given classes": (
        {"y": np.full(60, 2**63, np.uint64)},
        {"classes": 3},
        "example 0 of client '0' has 9223372036854775808",
    ),
    "object arrays": ({"x": X.astype(object)}, {}, "'x' is of Python objects, which are never"),
    "client objects": ({"client": np.array(["a"] * 60, object)}, {}, "'client' is of Python obj"),
    "x without dimensions": ({"x": np.array(1.0)}, {}, r"got lengths \[0, 60, 60\]"),
    "y without dimensions": ({"y": np.array(1)}, {}, r"got lengths \[60, 0, 60\]"),
    "client without dimensions": ({"client": np.array(1)}, {}, r"got shape \[\]"),
    "no rows": ({"x": X[:0], "y": Y[:0], "client": CLIENT[:0]}, {}, "must hold examples, got none"),
    "x of width 0": ({"x": np.zeros((60, 0))}, {}, r"must hold examples, got \[60, 0\]"),
    "y of width 0": ({"y": np.zeros((60, 0))}, {}, r"got \[60, 3\] and \[60, 0\]"),
    "no client": ({"client": None}, {}, "must hold arrays x, y, client, but has only x, y"),
    "half a server": ({"x_server": X[:3] + 9}, {}, "must hold arrays x_server, y_server"),
    "an empty server": ({"x_server": X[:0], "y_server": Y[:0]}, {}, r"must hold .*\[0, 3\]"),
    "a server of numbers": (
        {"x_server": np.array(1.0), "y_server": np.array(1)},
        {},
        r"the server's x must have shape \[3\]",
    ),
    "a server of NaN": (
        {"x_server": np.full((4, 3), np.nan), "y_server": Y[:4]},
        {},
        "example 0 of the server has a NaN",
    ),
    "a negative label of the server": (
        {"x_server": X[:4] + 9, "y_server": -np.ones(4, int)},
        {},
        "example 0 of the server has -1",
    ),
    "a server of other lengths": (
        {"x_server": np.ones((4, 3)), "y_server": Y[:3]},
        {},
        "the server's x and y must pair up",
    ),
    "complex": ({"x": X.astype(complex)}, {}, "got complex128"),
    "dates": ({"x": np.zeros((60, 3), "datetime64[s]")}, {}, "got datetime64"),
    "durations": ({"y": np.zeros(60, "timedelta64[s]")}, {}, "got timedelta64"),
    "records": ({"x": np.zeros(60, [("a", "f4")])}, {}, "got .*'a'"),
    "client dates": ({"client": np.zeros(60, "datetime64[s]")}, {}, "got datetime64"),
    "client bytes": ({"client": CLIENT.astype("S3")}, {}, r"client must be integers .* got \|S3"),
    "client bools": ({"client": CLIENT > 2}, {}, "client must be integers or strings, got bool"),
    "NaN clients": (
        {"client": np.where(CLIENT == 2, np.nan, CLIENT)},
        {},
        "client must be integers or strings, got float64",
    ),
    "infinite x": ({"x": np.full((60, 3), np.inf)}, {}, "has a NaN or infinity"),
    "NaN targets": ({"y": np.full(60, np.nan)}, {}, "has a NaN or infinity"),
    "negative labels": ({"y": Y - 1}, {}, "example .* has -1"),
    "true classes": ({}, {"classes": True}, "got True"),
    "classes as text": ({}, {"classes": "3"}, "got '3'"),
    "no classes": ({}, {"classes": 0}, "got 0"),
    "very many classes": ({}, {"classes": 10**30}, "classes must be a whole number"),
    "scale 0": ({"x": BYTES}, {"scale": 0}, "scale must be a positive number, got 0"),
    "scale NaN": ({"x": BYTES}, {"scale": float("nan")}, "scale must be .* got nan"),
    "negative scale": ({"x": BYTES}, {"scale": -1}, "scale must be .* got -1"),
    "scale as text": ({"x": BYTES}, {"scale": "1"}, "scale must be .* got '1'"),
    "no scale": ({"x": BYTES}, {"scale": None}, "scale must be .* got None"),
    "true scale": ({"x": BYTES}, {"scale": True}, "scale must be .* got True"),
    "negative server": ({}, {"server": -1}, "server must be .* got -1"),
    "all for the server": ({}, {"server": 1.0}, "server must be .* got 1.0"),
    "server NaN": ({}, {"server": float("nan")}, "server must be .* got nan"),
    "too many for the server": ({}, {"server": 10**30}, "at most 54, got 10000"),
    "true server": ({}, {"server": True}, "server must be .* got True"),
    "false server": ({}, {"server": False}, "server must be .* got False"),
    "server as text": ({}, {"server": "0.1"}, "server must be .* got '0.1'"),
    "server as empty list": ({}, {"server": []}, r"the pair \(x, y\), got 0 values"),
    "seed as text": ({}, {"seed": "a"}, "seed must be .* got 'a'"),
    "true seed": ({}, {"seed": True}, "seed must be .* got True"),
    "tokens as text": ({}, {"tokens": "yes"}, "tokens must be true or false, got 'yes'"),
    "overlap as text": ({}, {"overlap": "a"}, "overlap must be true or false, got 'a'"),
    "share as text": ({}, {"test_share": "a"}, "test_share must be a share .* got a"),
    "true share": ({}, {"unseen_clients": True}, "unseen_clients must be a share .* got True"),
    "huge share": ({}, {"test_share": 10**400}, "test_share must be a share .* got 1000"),
}


@pytest.mark.parametrize("case", WORKING)
def test_unusual_arrays_work(case: str, tmp_path: Path) -> None:
    arrays, options = WORKING[case]
    assert from_npz(write(tmp_path / "t.npz", arrays), **options).describe().examples > 0


@pytest.mark.parametrize("case", REFUSED)
def test_arrays_and_options_are_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    arrays, options, pattern = REFUSED[case]
    path = write(tmp_path / "t.npz", arrays)
    assert_refused(lambda: from_npz(path, **options), pattern)


@pytest.mark.parametrize("column", ["x", "y", "client"])
def test_another_byte_order_is_converted(column: str, tmp_path: Path) -> None:
    plain: dict[str, Array] = {"x": X, "y": Y, "client": CLIENT}
    swapped = {column: plain[column].astype(plain[column].dtype.newbyteorder(">"))}
    dataset = from_npz(write(tmp_path / "t.npz", swapped), server=0.1)
    expected = from_npz(write(tmp_path / "t.npz", {}), server=0.1)
    for values, expected_values in zip(dataset.clients[:2], expected.clients[:2], strict=True):
        assert values.dtype.isnative
        np.testing.assert_array_equal(values, expected_values)
    assert dataset.client_names.tolist() == expected.client_names.tolist()


def test_names_of_clients_are_kept_as_they_are(tmp_path: Path) -> None:
    dataset = from_npz(write(tmp_path / "t.npz", {"client": NAMES[CLIENT]}))
    assert set(dataset.client_names.tolist()) == set(NAMES.tolist())


def test_clients_of_mixed_kinds_are_not_joined() -> None:
    mixed: list[Any] = [1, "1", 2] * 20
    assert_refused(
        lambda: from_arrays(X, Y, mixed),
        "client must be integers or strings, got 20 strings among 60 values",
    )


def save_member(content: bytes) -> Callable[[Path], None]:
    """Return a function that writes a file in which `content` takes the place of array x."""

    def save(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", content)
            for name, array in (("y", Y), ("client", CLIENT)):
                archive.writestr(f"{name}.npy", to_npy(array))

    return save


def to_npy(array: Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def make_header(shape: str, descr: str = "<f4") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "text": (lambda path: path.write_bytes(b"x,y\n1,2"), "it is no zip archive"),
    "nothing": (lambda path: path.write_bytes(b""), "it is no zip archive"),
    "an array": (lambda path: path.write_bytes(to_npy(X)), "it is no zip archive"),
    "a folder": (Path.mkdir, "Is a directory"),
    "a member that is no array": (save_member(b"no array"), "but has only y, client"),
    "an array of terabytes": (
        save_member(make_header("(1000000000000, 3)")),
        r"array 'x' of shape \[1000000000000, 3\] needs at least 12,000.0 GB",
    ),
    "a negative length": (save_member(make_header("(-5, 3)")), r"is damaged: .* \[-5, 3\]"),
    "more rows than bytes": (save_member(make_header("(50, 3)")), "needs 600 bytes, but the file"),
    "an unknown type": (save_member(make_header("(5, 3)", "zzz")), "not a valid dtype"),
    "a deep header": (save_member(make_header("(" * 3000)), "cannot be read as an .npz file"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_files_that_are_no_arrays_are_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    save, pattern = DAMAGED[case]
    path = tmp_path / "t.npz"
    save(path)
    assert_refused(lambda: from_npz(path), pattern)


def test_files_that_cannot_be_named_are_refused() -> None:
    assert_refused(lambda: from_npz("a\0.npz"), "null byte")
    assert_refused(lambda: from_npz("a" * 5000 + ".npz"), "File name too long")
    for name in (3, None, Path("t.npz")):
        assert_refused(lambda name=name: load(name), "must be named by a string")  # type: ignore[misc]


def test_pickles_are_never_executed(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    proof = tmp_path / "executed"
    write(path, {"x": np.array([Exploit(proof)] * 60, object)})
    assert_refused(lambda: from_npz(path), "which are never loaded")
    path.write_bytes(pickle.dumps(Exploit(proof)))
    assert_refused(lambda: from_npz(path), "it is no zip archive")
    assert not proof.exists()


@pytest.mark.parametrize("compression", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED])
def test_compressed_files_are_read_and_damage_is_noticed(compression: int, tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, array in (("x", X), ("y", Y), ("client", CLIENT)):
            archive.writestr(f"{name}.npy", to_npy(array))
    expected = describe_content(from_npz(path))
    content = path.read_bytes()
    for position in range(0, len(content), 37):
        damaged = bytearray(content)
        damaged[position] ^= 0x5A
        path.write_bytes(bytes(damaged))
        try:
            dataset = from_npz(path)
        except InputError as error:
            assert_refused(lambda error=error: raise_error(error), r"^'|^t: ")  # type: ignore[misc]
        else:
            assert describe_content(dataset) == expected


def describe_content(dataset: FederatedDataset) -> tuple[bytes, bytes, list[str]]:
    clients = dataset.clients
    return clients.x.tobytes(), clients.y.tobytes(), dataset.client_names.tolist()


def raise_error(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("option", ["clients", "features", "classes", "server"])
@pytest.mark.parametrize("value", [True, 2.5, "a", -1, None, float("nan"), [1], 10**12, 10**400])
def test_numbers_of_a_generated_set_are_whole_and_fit_into_memory(option: str, value: Any) -> None:
    options: dict[str, Any] = {"clients": 2, option: value}
    assert_refused(
        lambda: synthetic(**options),
        rf"synthetic: {option} must be a whole number|the data set needs at least .* GB of memory",
    )


@pytest.mark.parametrize("option", ["alpha", "beta", "iid"])
@pytest.mark.parametrize("value", ["a", -1, None, float("nan"), [1], 10**400])
def test_other_options_of_a_generated_set_are_checked(option: str, value: Any) -> None:
    options: dict[str, Any] = {"clients": 2, option: value}
    assert_refused(lambda: synthetic(**options), f"synthetic: {option} must be")


def test_memory_is_compared_with_that_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "get_memory", lambda: memory.Memory(1000, 1000))
    memory.require_memory("It", 1000, "make it smaller")
    assert_refused(
        lambda: memory.require_memory("It", 10**9, "make it smaller"),
        r"^It needs at least 1.0 GB of memory, but cpu has 0.0 GB; make it smaller\.$",
    )
