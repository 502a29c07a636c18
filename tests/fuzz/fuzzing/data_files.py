"""Data files: published formats and one's own, damaged or with unusual content.

Files with checksums of their content (archives, .npz, .gz) that were damaged must be refused or
give what the whole file gives. Damage to other files makes other files, which may be accepted.
"""

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from hypothesis import strategies as st

import set_files
from fedtailor.data.store import open_store
from fedtailor.storage.paths import DATA_DIR_ENV
from fuzzing.arguments import build_array
from fuzzing.cases import Case, Draws, StrategyDrawer, pick
from fuzzing.children import FindingError, RefusedError
from fuzzing.commands import run_command
from fuzzing.folders import SMALL
from fuzzing.mutations import FileDamage, draw_damage
from fuzzing.strategies import NUM_EXAMPLES, RAW_TEXTS, ArrayRecipe, arrays

SET_NAME = "own"
"""Name of data of the user's own."""

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz")
SELF_CHECKED = (".zip", ".gz", ".bz2", ".xz", ".npz")
"""Ends of files that have a checksum of their content."""

UNTOUCHED_SHARE = 0.02
"""Share of cases without damage, which must work."""
INNER_SHARE = 0.4
"""Share of cases of archives in which a file is damaged before it is packed."""

OPTION_TEXTS = ("x", "y", "client", "nothing", "x,y", "", ",", "x,x", *RAW_TEXTS)
CLASS_TEXTS = ("1", "2", "3", "1000000000000", "9223372036854775808")
SCALE_TEXTS = ("0", "nan", "inf", "-1", "1e-300", "1e300", "0.5")


class Format(NamedTuple):
    """Files of a data set in a form in which `data add` reads it."""

    name: str  # of the data set
    write: Callable[[Path], Path]  # writes files into a folder, and returns what to add
    suffix: str = ""  # of the archive that the files are packed into


def _write_npz(folder: Path) -> Path:
    path = folder / "own.npz"
    np.savez(path, **_make_columns())
    return path


def _write_compressed_npz(folder: Path) -> Path:
    path = folder / "own.npz"
    np.savez_compressed(path, **_make_columns())
    return path


def _write_parquet(folder: Path) -> Path:
    import pyarrow
    from pyarrow import parquet

    columns = _make_columns()
    path = folder / "own.parquet"
    table = pyarrow.table(
        {"x": columns["x"].tolist(), "y": columns["y"], "client": columns["client"]}
    )
    parquet.write_table(table, path, row_group_size=10)
    return path


def _write_array_folders(folder: Path) -> Path:
    root = folder / "arrays"
    columns = _make_columns()
    for client in range(4):
        client_folder = root / f"client {client}"
        client_folder.mkdir(parents=True)
        for name in ("x", "y"):
            np.save(client_folder / f"{name}.npy", columns[name][client::4])
    return root


def _write_image_folders(folder: Path) -> Path:
    from PIL import Image

    root = folder / "images"
    draws = np.random.default_rng(0)
    for client in range(3):
        for label in ("cat", "dog"):
            label_folder = root / f"client {client}" / label
            label_folder.mkdir(parents=True)
            for number in range(2):
                pixels = draws.integers(0, 256, (4, 4, 3), np.uint8)
                Image.fromarray(pixels).save(label_folder / f"{number}.png")
    return root


def _make_columns() -> dict[str, Any]:
    draws = np.random.default_rng(0)
    return {
        "x": draws.normal(size=(NUM_EXAMPLES, 3)),
        "y": draws.integers(0, 3, NUM_EXAMPLES),
        "client": np.array([f"client {number % 4}" for number in range(NUM_EXAMPLES)]),
    }


def _write_unpacked(write: Callable[[Path], Path], name: str) -> Callable[[Path], Path]:
    """Return a function that writes what another one packs, in a folder of this name."""

    def write_folder(folder: Path) -> Path:
        write(folder).unlink()
        return folder / name

    return write_folder


write_batches = _write_unpacked(set_files.cifar10(binary=False), "batches")

FORMATS = {
    "npz": Format(SET_NAME, _write_npz),
    "compressed npz": Format(SET_NAME, _write_compressed_npz),
    "parquet": Format(SET_NAME, _write_parquet),
    "array folders": Format(SET_NAME, _write_array_folders),
    "image folders": Format(SET_NAME, _write_image_folders),
    "mnist idx.gz": Format("mnist", set_files.idx(("train", "t10k"))),
    "mnist idx": Format("mnist", set_files.idx(("train", "t10k"), "")),
    "mnist npz": Format("mnist", set_files.npz("mnist")),
    "emnist zip": Format("emnist-balanced", _write_unpacked(set_files.emnist_zip, "gzip"), ".zip"),
    "cifar10": Format("cifar10", write_batches),
    **{f"cifar10 {end}": Format("cifar10", write_batches, end) for end in ARCHIVE_SUFFIXES},
    "femnist leaf": Format("femnist", set_files.leaf_femnist),
    "shakespeare npz": Format("shakespeare", set_files.shakespeare_npz),
    "fed-cifar100 tar.bz2": Format(
        "fed-cifar100", _write_unpacked(set_files.fed_cifar100, "fed"), ".tar.bz2"
    ),
    "stackexchange": Format("stackexchange", set_files.stackexchange(listed=True)),
}
"""Files that are prepared and damaged."""


class DataFileTarget:
    """Files with damage or unusual content, which are added and trained on."""

    name = "data"

    def __init__(self) -> None:
        self._folder = Path()
        self._sources: dict[str, str] = {}
        self._results: dict[str, str] = {}
        self._own_drawer = StrategyDrawer(own_files())

    def prepare(self, folder: Path) -> None:
        """Write the files of each format, and note the digests of the stores made of them."""
        results = {}
        sources = {}
        for name, file_format in FORMATS.items():
            own_folder = folder / name
            own_folder.mkdir()
            with mock.patch("time.time", return_value=1e9):  # part of what gzip writes
                source = file_format.write(own_folder)
            sources[name] = str(source.relative_to(own_folder))
            work = folder / "work"
            work.mkdir()
            os.chdir(work)
            os.environ[DATA_DIR_ENV] = str(work / "data")
            packed = _get_packed_folder(folder, name)
            packed.mkdir()
            added = _pack(own_folder / sources[name], file_format, packed)
            run_command(["data", "add", file_format.name, "--from", str(added)])
            results[name] = _digest_store(file_format.name)
            os.chdir(folder)
            shutil.rmtree(work)
        (folder / "prepared.json").write_text(json.dumps({"results": results, "sources": sources}))

    def open(self, folder: Path) -> None:
        """Read what was prepared, and import what readers import."""
        self._folder = folder
        prepared = json.loads((folder / "prepared.json").read_text())
        self._results = prepared["results"]
        self._sources = prepared["sources"]
        _load_readers()

    def make_case(self, draws: Draws) -> Case:
        """Return an unusual file of one's own, or a damaged file of any format."""
        if draws.random() < 0.4:
            own: OwnFile = self._own_drawer.draw(draws)
            return Case(ascii(own)[:1000], partial(_use_own, own))
        name = pick(draws, list(FORMATS))
        file_format = FORMATS[name]
        is_untouched = draws.random() < UNTOUCHED_SHARE
        is_inner = bool(file_format.suffix) and draws.random() < INNER_SHARE
        damage = None
        if not is_untouched and (is_inner or not file_format.suffix):
            damage = draw_damage(self._folder / name, draws)
        archive_damage = None
        if file_format.suffix and not is_inner and not is_untouched:
            archive_damage = draw_damage(_get_packed_folder(self._folder, name), draws)
        plan = _Plan(name, damage, archive_damage)
        return Case(f"{name}: {plan.description}", partial(self._act, plan))

    def _act(self, plan: "_Plan", work: Path) -> str:
        os.environ[DATA_DIR_ENV] = str(work / "data")
        file_format = FORMATS[plan.name]
        files = work / "files"
        shutil.copytree(self._folder / plan.name, files)
        if plan.damage is not None:
            plan.damage.apply(files)
        packed = work / "packed"
        packed.mkdir()
        source = _pack(files / self._sources[plan.name], file_format, packed)
        if plan.archive_damage is not None:
            plan.archive_damage.apply(packed)
        try:
            run_command(["data", "add", file_format.name, "--from", str(source)])
        except RefusedError as refusal:
            self._require_nothing_left(plan, work)
            if plan.damage is None and plan.archive_damage is None:
                raise FindingError("refused", plan.name, str(refusal)) from None
            return "refused"
        if plan.is_checked and _digest_store(file_format.name) != self._results[plan.name]:
            raise FindingError("difference", f"{plan.name}, data add", plan.description)
        return "ok"

    def _require_nothing_left(self, plan: "_Plan", work: Path) -> None:
        left = [path.name for path in (work / "data").glob("*/*") if path.suffix != ".lock"]
        if left:
            raise FindingError("lost", f"{plan.name}: a refused `data add` leaves files", f"{left}")


class _Plan(NamedTuple):
    """What a case does."""

    name: str
    damage: FileDamage | None
    archive_damage: FileDamage | None

    @property
    def description(self) -> str:
        """Return what is damaged."""
        damages = [damage for damage in (self.damage, self.archive_damage) if damage is not None]
        return ", ".join(damage.description for damage in damages) or "untouched"

    @property
    def is_checked(self) -> bool:
        """Whether the damaged file has a checksum of its content, which must be noticed."""
        damage = self.archive_damage or self.damage
        if damage is None:
            return True
        # Another file in its place is as whole as the first.
        is_other = damage.kind != "changed" or "another file" in damage.description
        return damage.file.endswith(SELF_CHECKED) and not is_other


# An own file with unusual content


class OwnFile(NamedTuple):
    """A file of one's own, and the command that reads it."""

    columns: dict[str, ArrayRecipe]
    suffix: str  # ".npz" or ".parquet"
    words: tuple[str, ...]


@st.composite
def own_files(draw: st.DrawFn) -> OwnFile:
    """Return an own file with unusual content, which is added, shown or trained on."""
    columns = {
        "x": draw(arrays((NUM_EXAMPLES, 3), ("float32", "float64", "uint8"))),
        "y": draw(arrays((NUM_EXAMPLES,), ("int64", "uint8", "float32"))),
        "client": draw(arrays((NUM_EXAMPLES,), ("int64", "U5"))),
    }
    if draw(st.integers(0, 3)) == 0:
        columns["x_server"] = draw(arrays((5, 3), ("float32", "float64")))
        columns["y_server"] = draw(arrays((5,), ("int64", "uint8")))
    if draw(st.integers(0, 7)) == 0:
        del columns[draw(st.sampled_from(sorted(columns)))]
    suffix = draw(st.sampled_from((".npz", ".npz", ".parquet")))
    kind = "add" if suffix == ".parquet" else draw(st.sampled_from(("add", "run", "run", "show")))
    if kind == "run":
        option = st.sampled_from(("server=2", "server=0.1", "scale=0", "classes=2", "tokens=true"))
        options = [f"data.{word}" for word in draw(st.lists(option, max_size=1))]
        return OwnFile(columns, suffix, ("run", "method=fedavg", *_TRAINING, *options))
    if kind == "show":
        return OwnFile(columns, suffix, ("data", "show"))
    flags: list[str] = []
    if draw(st.booleans()):
        flag = draw(st.sampled_from(("--x", "--y", "--client", "--classes", "--scale")))
        choices = {"--classes": CLASS_TEXTS, "--scale": SCALE_TEXTS}.get(flag, OPTION_TEXTS)
        flags = [flag, draw(st.sampled_from(choices))]
    return OwnFile(columns, suffix, ("data", "add", SET_NAME, *flags))


_TRAINING = (
    *(word for word in SMALL if not word.startswith("data.")),
    "rounds=1",
    "out=out",
)


def _use_own(own: OwnFile, work: Path) -> str:
    os.environ[DATA_DIR_ENV] = str(work / "data")
    path = work / f"own{own.suffix}"
    if not _save_columns(path, own.columns):
        return "ok"
    commands = {
        "run": [*own.words, "data=own.npz"],
        "show": [*own.words, "own.npz"],
        "add": [*own.words, "--from", path.name],
    }
    kind = own.words[0] if own.words[0] == "run" else own.words[1]
    try:
        run_command(commands[kind])
        if kind == "add":
            run_command(["run", "method=fedavg", f"data={SET_NAME}", *_TRAINING])
    except RefusedError:
        return "refused"
    return "ok"


def _save_columns(path: Path, recipes: dict[str, ArrayRecipe]) -> bool:
    """Write columns into a file; return False if they cannot be made, or its format lacks them."""
    try:
        columns = {name: build_array(recipe) for name, recipe in recipes.items()}
        if path.suffix == ".npz":
            np.savez(path, **columns)
            return True
        import pyarrow
        from pyarrow import parquet

        lists = {
            name: np.asarray(column).tolist() if np.ndim(column) > 1 else column
            for name, column in columns.items()
        }
        parquet.write_table(pyarrow.table(lists), path)
    except Exception:  # of NumPy, torch or pyarrow, which are not under test
        return False
    return True


# Archives


def _get_packed_folder(folder: Path, name: str) -> Path:
    """Return the folder of a format's archive, empty for a format that is no archive."""
    return folder / f"packed {name}"


def _pack(source: Path, file_format: Format, folder: Path) -> Path:
    """Pack a folder into the archive of a format, always into the same bytes."""
    if not file_format.suffix:
        return source
    path = folder / f"archive{file_format.suffix}"
    files = sorted(file for file in source.iterdir())
    if file_format.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                if file.is_file():
                    archive.writestr(
                        zipfile.ZipInfo(f"{source.name}/{file.name}"), file.read_bytes()
                    )
        return path
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as packing:
        for file in files:
            info = packing.gettarinfo(str(file), f"{source.name}/{file.name}")
            info.mtime = 0
            packing.addfile(info, io.BytesIO(file.read_bytes()) if info.isreg() else None)
    path.write_bytes(_compress(content.getvalue(), file_format.suffix))
    return path


def _compress(content: bytes, suffix: str) -> bytes:
    import bz2
    import lzma

    compressors: dict[str, Callable[[bytes], bytes]] = {
        ".tar": bytes,
        ".tar.gz": partial(gzip.compress, mtime=0),
        ".tar.bz2": bz2.compress,
        ".tar.xz": lzma.compress,
    }
    return compressors[suffix](content)


def _digest_store(name: str) -> str:
    """Return a digest of what a store holds."""
    store = open_store(name)
    digest = hashlib.sha256()
    columns = [store.columns[name] for name in sorted(store.columns)]
    for part in (*columns, store.offsets, store.client_names):
        digest.update(np.ascontiguousarray(part[:]).tobytes())
    return digest.hexdigest()


def _load_readers() -> None:
    """Import what readers import when they are first used, but for pyarrow: it starts a thread."""
    for module in ("h5py", "PIL.Image"):
        import_module(module)
