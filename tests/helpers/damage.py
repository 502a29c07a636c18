"""Damage to stored files, at places that a seed decides."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def flip_bit(content: bytes, draws: random.Random) -> bytes:
    """Return the content with one bit changed."""
    place = draws.randrange(len(content))
    flipped = bytes([content[place] ^ (1 << draws.randrange(8))])
    return content[:place] + flipped + content[place + 1 :]


def cut_end(content: bytes, draws: random.Random) -> bytes:
    """Return the content without its end."""
    return content[: draws.randrange(len(content))]


def cut_middle(content: bytes, draws: random.Random) -> bytes:
    """Return the content without some bytes."""
    start = draws.randrange(len(content))
    return content[:start] + content[start + draws.randint(1, 20) :]


def extend(content: bytes, draws: random.Random) -> bytes:
    """Return the content with a copy of its beginning behind it."""
    return content + content[: draws.randint(1, len(content))]


def swap_parts(content: bytes, draws: random.Random) -> bytes:
    """Return the content with its parts before and behind a place exchanged."""
    place = draws.randrange(1, len(content))
    return content[place:] + content[:place]


MUTATIONS = (flip_bit, cut_end, cut_middle, extend, swap_parts)


def list_files(folder: Path) -> list[str]:
    """Return the files that are not empty anywhere in a folder."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size)
    return [path.relative_to(folder).as_posix() for path in paths]


def iterate_mutations(content: bytes, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield other contents for a file, with what was done to it."""
    draws = random.Random(seed)
    for mutate in MUTATIONS:
        mutated = mutate(content, draws)
        if mutated != content:
            yield mutate.__name__, mutated


def edit_json(path: Path, keys: str, value: Any) -> None:
    """Set a value, with dotted keys, in a JSON file as a careless editor would."""
    content = json.loads(path.read_text())
    *outer_keys, last_key = keys.split(".")
    table = content
    for key in outer_keys:
        table = table[key]
    assert table[last_key] != value
    table[last_key] = value
    path.write_text(json.dumps(content, indent=1) + "\n")


def change_line(lines: list[str]) -> list[str]:
    """Change a figure of the third line."""
    changed = lines[2].replace('"steps": ', '"steps": 1')
    assert changed != lines[2]
    return [*lines[:2], changed, *lines[3:]]


def delete_line(lines: list[str]) -> list[str]:
    """Delete the third line."""
    return lines[:2] + lines[3:]


def swap_lines(lines: list[str]) -> list[str]:
    """Exchange the third and the fourth line."""
    return [*lines[:2], lines[3], lines[2], *lines[4:]]


def repeat_line(lines: list[str]) -> list[str]:
    """Write the second line twice."""
    return [*lines[:2], lines[1], *lines[2:]]


LINE_DAMAGES: tuple[Callable[[list[str]], list[str]], ...] = (
    change_line,
    delete_line,
    swap_lines,
    repeat_line,
)
"""Damages of a log, which is intact up to its second line."""


def damage_lines(path: Path, damage: Callable[[list[str]], list[str]]) -> None:
    """Damage the lines of a file."""
    path.write_text("".join(damage(path.read_text().splitlines(keepends=True))))
