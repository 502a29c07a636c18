"""Putting a data set where data lies: downloaded or from files at hand, read by its reader, built into a store."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

from fedtailor.data.blocks import Block
from fedtailor.data.sets.downloading import Downloaded, download
from fedtailor.data.sets.known import BUILT_IN, VERSION, Known
from fedtailor.data.sets.pictures import PICTURES
from fedtailor.data.sets.texts import TEXTS
from fedtailor.data.sets.unpacking import unpacked
from fedtailor.data.store import MadeFrom, Stored, build, fingerprint, names, opened
from fedtailor.data.store.columns import Progress
from fedtailor.errors import InputError, nearest, require
from fedtailor.place import folder

KNOWN: dict[str, Known] = {**PICTURES, **TEXTS}
"""The data sets that have a name here."""


def add(
    name: str,
    source: str | Path | None = None,
    progress: Progress | None = None,
    downloading: Downloaded | None = None,
) -> Stored:
    """Adds a known data set: from a file, folder or archive at hand, or, without one, from where it is published.

    What is downloaded is checked, kept, and not downloaded again; `progress` and `downloading` are told how
    far it is.
    """
    require(name in KNOWN, f"There is no data set '{name}' to be added; {nearest(name, KNOWN)}")
    known = KNOWN[name]
    paths = _downloaded(name, known, downloading) if source is None else [Path(source)]
    for path in paths:
        require(path.exists(), f"{name}: there is no file or folder '{path}'; what is wanted is {known.wanted}.")
    with ExitStack() as stack:
        with _wanting(name, known):
            place = stack.enter_context(unpacked(name, paths))
        made_from = MadeFrom(VERSION, tuple(fingerprint(path) for path in paths if path.is_file()))
        attributes = {**known.attributes, "about": known.about}
        return build(name, _blocks(name, known, place), attributes, made_from, progress)


@contextmanager
def _wanting(name: str, known: Known) -> Iterator[None]:
    """Adds to what is said of files that cannot be read whose they should have been, and what is wanted."""
    try:
        yield
    except InputError as problem:
        told = f"{str(problem).rstrip('.')}; what is wanted is {known.wanted}."
        raise InputError(f"{name}: {told.removeprefix(f'{name}: ')}") from problem


def _blocks(name: str, known: Known, place: Path) -> Iterator[Block]:
    found = False
    with _wanting(name, known):
        for block in known.read(place):
            found = True
            yield block
        require(found, f"there are no examples in '{place}'.")


def add_own(
    name: str,
    blocks: Iterable[Block],
    *,
    classes: int | Literal["auto"] | None = "auto",
    scale: float = 1.0,
    tokens: bool = False,
    about: str = "your own",
    progress: Progress | None = None,
) -> Stored:
    """Adds data of the user's own, as blocks that a reader gives (`fedtailor.data.readers`), under a new name.

    `classes` None: targets are numbers to be predicted; "auto": so they are if they are floating, else the classes are
    counted, from 0 to the highest label.
    """
    taken = name in KNOWN or name in BUILT_IN or name.endswith(".npz")
    require(not taken, f"'{name}' is the name of a known data set or of a file; give yours another.")
    attributes = {"classes": classes, "scale": scale, "tokens": tokens, "about": about}
    return build(name, blocks, attributes, MadeFrom(VERSION), progress)


def stored(name: str) -> Stored:
    """A data set that has been added, or a sentence that says how to add it."""
    return opened(name, VERSION)


def classes_of(data: Stored) -> int | None:
    """How many classes a data set has; None: its targets are numbers."""
    known: int | str | None = data.attributes["classes"]
    if isinstance(known, str):
        y = data.columns["y"]
        return None if y.dtype.kind == "f" else max(1, int(y.max()) + 1)
    return known


def installed() -> list[str]:
    """The data sets that have been added."""
    return names()


def attributes_of(name: str) -> dict[str, Any]:
    """What is said of a data set, added or known."""
    return KNOWN[name].attributes if name in KNOWN else stored(name).attributes


def _downloaded(name: str, known: Known, tell: Downloaded | None) -> list[Path]:
    """The published files, checked; those that are there already are not downloaded again."""
    remedy = f"get {known.wanted} yourself and say `fedtailor data add {name} --from PATH`."
    require(bool(known.remotes), f"{name}: there is no place to download it from; {remedy}")
    first = next(other for other, each in KNOWN.items() if each.remotes == known.remotes)  # several may share files
    place, found = folder() / "downloads" / first, []
    for remote in known.remotes:
        try:
            place.mkdir(parents=True, exist_ok=True)
            found.append(download(remote, place, tell))
        except Exception as problem:  # of the network, of the disk, or a checksum that differs
            reason = next(iter(str(problem).splitlines()), type(problem).__name__)
            raise InputError(f"{name}: {remote.url} could not be had: {reason.rstrip('.')}; {remedy}") from None
    # The four files of MNIST are read from their folder.
    return [place] if all(path.name.endswith("ubyte.gz") for path in found) else found
