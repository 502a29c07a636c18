"""Data sets put on this machine, or taken away: known ones by name, one's own from a file or folder."""

from pathlib import Path
from typing import Any

from fedtailor.data.sets import KNOWN, add, add_own, installed, own_blocks
from fedtailor.data.sets.downloading import Downloaded
from fedtailor.data.store import remove
from fedtailor.data.store.columns import Progress
from fedtailor.errors import InputError, nearest, require


def added(name: str, source: Path | None, tell: Progress, downloading: Downloaded, **own: Any) -> str:
    """Adds a data set, and says what and where it is; `own` says how the user's own is to be read."""
    if name in KNOWN:
        asked = [f"--{key}" for key, value in own.items() if value is not None]
        require(not asked, f"{name}: {', '.join(asked)} is for data of your own, and this set is known; leave it out.")
        made = add(name, source, tell, downloading)
    else:
        made = _own(name, source, tell, **own)
    people = f" of {made.clients:,} clients" if str(made.ids[0]) or made.clients > 1 else ""
    return f"{name}: {made.rows:,} examples{people} in {made.folder}"


def _own(
    name: str,
    source: Path | None,
    tell: Progress,
    x: str | None,
    y: str | None,
    client: str | None,
    classes: int | None,
    scale: float | None,
) -> Any:
    """Data of the user's own; images of a folder are scaled to numbers from 0 to 1."""
    if source is None:
        raise InputError(f"There is no data set '{name}'; {nearest(name, KNOWN)} Your own data needs --from PATH.")
    images = source.is_dir() and not any(source.glob("*/x.npy"))
    return add_own(
        name,
        own_blocks(source, (x or "x").split(","), y or "y", client or "client"),
        classes="auto" if classes is None else classes,
        scale=scale if scale is not None else 1 / 255 if images else 1.0,
        about=f"your own, from {source.name}",
        progress=tell,
    )


def removed(name: str) -> str:
    """Removes a data set that has been added, and says so."""
    there = installed()
    require(name in there, f"'{name}' has not been added; {nearest(name, there) if there else 'nothing has.'}")
    remove(name)
    return f"{name}: removed"
