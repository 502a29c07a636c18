"""Seeded damage to bytes, texts, JSON documents and the files of a folder."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fuzzing.cases import Draws, pick

MAX_RANGE = 64
"""Most bytes that are changed, moved or added at a time, but for what is cut off."""

_HOSTILE_VALUES: tuple[Any, ...] = (None, True, -1, 0, 1, 2**63, 1e308, "", "x", [], {}, [[]])
_HOSTILE_BYTES = (b"\x00", b"\xff", b"\n", b"{}", b"0", b"\xef\xbb\xbf", b"9" * 30)


class Mutation(NamedTuple):
    """Damage to a file: its new content, and what was done to it."""

    content: bytes
    description: str


def mutate_bytes(content: bytes, draws: Draws, other: bytes = b"") -> Mutation:
    """Return bytes with one piece of damage.

    Args:
        content: The bytes.
        draws: Random draws, which choose the damage.
        other: Content of another file, which may take the place of these bytes.
    """
    choices: list[Callable[[bytes, Draws], Mutation]] = [_append]
    if content:
        choices += [_flip_bit, _flip_bit, _overwrite, _cut, _drop, _insert, _swap, _repeat, _empty]
    if _is_text(content):
        choices += [_change_digit, _change_digit, _change_lines]
    if _parse_json(content) is not None:
        choices += [_change_json, _change_json, _change_json]
    if other and other != content:
        choices.append(lambda _, __: Mutation(other, "replaced by another file"))
    return pick(draws, choices)(content, draws)


def _flip_bit(content: bytes, draws: Draws) -> Mutation:
    position = _draw_position(content, draws)
    bit = int(draws.integers(8))
    changed = bytearray(content)
    changed[position] ^= 1 << bit
    return Mutation(bytes(changed), f"bit {bit} of byte {position} flipped")


def _overwrite(content: bytes, draws: Draws) -> Mutation:
    start, end = _draw_range(content, draws)
    new = bytes(end - start) if draws.random() < 0.3 else draws.bytes(end - start)
    return Mutation(content[:start] + new + content[end:], f"bytes {start} to {end} overwritten")


def _cut(content: bytes, draws: Draws) -> Mutation:
    position = _draw_position(content, draws)
    return Mutation(content[:position], f"cut after {position} of {len(content)} bytes")


def _drop(content: bytes, draws: Draws) -> Mutation:
    start, end = _draw_range(content, draws)
    return Mutation(content[:start] + content[end:], f"bytes {start} to {end} left out")


def _insert(content: bytes, draws: Draws) -> Mutation:
    position = _draw_position(content, draws)
    new = _draw_new_bytes(draws)
    changed = content[:position] + new + content[position:]
    return Mutation(changed, f"{len(new)} bytes put in at {position}")


def _append(content: bytes, draws: Draws) -> Mutation:
    new = _draw_new_bytes(draws)
    return Mutation(content + new, f"{len(new)} bytes added at the end")


def _swap(content: bytes, draws: Draws) -> Mutation:
    length = int(draws.integers(1, max(1, min(MAX_RANGE, len(content) // 2)) + 1))
    first, second = sorted(int(draws.integers(0, len(content) - length + 1)) for _ in range(2))
    if second < first + length:
        return _flip_bit(content, draws)
    parts = (
        content[:first],
        content[second : second + length],
        content[first + length : second],
        content[first : first + length],
        content[second + length :],
    )
    return Mutation(b"".join(parts), f"{length} bytes at {first} and {second} swapped")


def _repeat(content: bytes, draws: Draws) -> Mutation:
    start, end = _draw_range(content, draws)
    return Mutation(content[:end] + content[start:], f"bytes {start} to {end} repeated")


def _empty(content: bytes, draws: Draws) -> Mutation:
    return Mutation(b"", "emptied")


def _change_digit(content: bytes, draws: Draws) -> Mutation:
    positions = [match.start() for match in re.finditer(rb"\d", content)]
    if not positions:
        return _append(content, draws)
    position = pick(draws, positions)
    digits = [digit for digit in b"0123456789" if digit != content[position]]
    changed = bytearray(content)
    changed[position] = pick(draws, digits)
    near = content[max(0, position - 20) : position + 5].decode(errors="replace")
    return Mutation(
        bytes(changed), f"digit at byte {position} now {chr(changed[position])}, after {near!r}"
    )


def _change_lines(content: bytes, draws: Draws) -> Mutation:
    lines = content.splitlines(keepends=True)
    first = int(draws.integers(len(lines)))
    second = int(draws.integers(len(lines)))
    change = pick(draws, ("left out", "repeated", "swapped"))
    if change == "left out":
        del lines[first]
    elif change == "repeated":
        lines.insert(second, lines[first])
    else:
        lines[first], lines[second] = lines[second], lines[first]
    return Mutation(b"".join(lines), f"lines {first + 1} and {second + 1}: {change}")


def _change_json(content: bytes, draws: Draws) -> Mutation:
    """Change one value of a JSON document, add a key or leave one out."""
    document = _parse_json(content)
    places = list(_list_places(document, ""))
    if not places:
        return _append(content, draws)
    container, key, path = pick(draws, places)
    change = pick(draws, ("value", "value", "value", "left out", "added"))
    if change == "left out":
        del container[key]
    elif change == "added" and isinstance(container, dict):
        container["extra"] = container[key]
    else:
        change = f"now {_change_value(container, key, draws)!r}"[:80]
    text = json.dumps(document, indent=1).encode() + b"\n"
    return Mutation(text, f"JSON value {path}: {change}")


def _change_value(container: Any, key: Any, draws: Draws) -> Any:
    old = container[key]
    if draws.random() < 0.3:
        container[key] = pick(draws, _HOSTILE_VALUES)
    elif isinstance(old, bool):
        container[key] = not old
    elif isinstance(old, int | float):
        container[key] = pick(draws, (old + 1, old * 2 + 1, -old, old / 3))
    elif isinstance(old, str):
        container[key] = pick(draws, (old + "x", old[:-1], old.upper(), old[::-1]))
    else:
        container[key] = pick(draws, _HOSTILE_VALUES)
    return container[key]


def _list_places(document: Any, path: str) -> Any:
    """Yield containers in a JSON document with each of their keys, and its path."""
    if isinstance(document, dict):
        items: Any = document.items()
    elif isinstance(document, list):
        items = enumerate(document)
    else:
        return
    for key, value in items:
        yield document, key, f"{path}.{key}"
        yield from _list_places(value, f"{path}.{key}")


def _is_text(content: bytes) -> bool:
    try:
        return content[:4096].decode().isprintable() or b"\n" in content[:4096]
    except UnicodeDecodeError:
        return False


def _parse_json(content: bytes) -> Any:
    if content[:1] not in (b"{", b"["):
        return None
    try:
        return json.loads(content)
    except ValueError:
        return None


def _draw_position(content: bytes, draws: Draws) -> int:
    """Return the position of a byte; beginnings and ends are drawn more often than the rest."""
    edge = draws.random()
    if edge < 0.2:
        return int(draws.integers(min(len(content), MAX_RANGE)))
    if edge < 0.4:
        return len(content) - 1 - int(draws.integers(min(len(content), MAX_RANGE)))
    return int(draws.integers(len(content)))


def _draw_range(content: bytes, draws: Draws) -> tuple[int, int]:
    start = _draw_position(content, draws)
    return start, min(len(content), start + int(draws.integers(1, MAX_RANGE + 1)))


def _draw_new_bytes(draws: Draws) -> bytes:
    if draws.random() < 0.5:
        return pick(draws, _HOSTILE_BYTES)
    return draws.bytes(int(draws.integers(1, MAX_RANGE + 1)))


# Files


class FileDamage(NamedTuple):
    """Damage to one file of a folder."""

    file: str  # relative to the folder
    kind: str  # "changed", "removed", "a loop of links" or "a folder"
    content: bytes  # of a file that is changed
    description: str

    def apply(self, folder: Path) -> None:
        """Damage the file in a copy of the folder."""
        path = folder / self.file
        if self.kind == "changed":
            times = path.stat()
            path.write_bytes(self.content)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            return
        path.unlink()
        if self.kind == "a loop of links":
            path.symlink_to(path.name)
        elif self.kind == "a folder":
            path.mkdir()

    def is_in(self, folder: Path) -> bool:
        """Return whether the file in the folder still has the damage."""
        path = folder / self.file
        if self.kind == "changed":
            return path.is_file() and path.read_bytes() == self.content
        return not path.is_file()


def draw_damage(folder: Path, draws: Draws, others: tuple[Path, ...] = ()) -> FileDamage:
    """Return damage to one of a folder's files, all of which are equally likely.

    Args:
        folder: The folder, which stays as it is.
        draws: Random draws.
        others: Folders whose files of the same name may take the place of this one's.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = pick(draws, files)
    file = str(path.relative_to(folder))
    if draws.random() < 0.06:
        kind = pick(draws, ("removed", "a loop of links", "a folder"))
        return FileDamage(file, kind, b"", f"{file}: {kind}")
    same_name = [other / file for other in others if (other / file).is_file()]
    replacement = pick(draws, same_name or files)
    mutation = mutate_bytes(path.read_bytes(), draws, replacement.read_bytes())
    return FileDamage(file, "changed", mutation.content, f"{file}: {mutation.description}")
