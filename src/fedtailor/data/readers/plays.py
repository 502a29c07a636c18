"""The Complete Works of Shakespeare as one text, divided into roles by LEAF's rule.

The rule fits the older edition of Project Gutenberg's text 100 (MD5 036d0f9cf7296f41165c2e6da1e52a0e), in which two
spaces stand before a speaker's name, four before the lines that follow, and "by William Shakespeare" under every title.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from fedtailor.data.blocks import Block
from fedtailor.data.readers.files import in_pieces, reading
from fedtailor.data.readers.text import Encoder, encode_characters
from fedtailor.errors import require

AUTHOR = "by William Shakespeare"
UNINDENTED = "THE COMEDY OF ERRORS"  # the one play whose lines are not indented
SPEAKER, LINE = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"    (.*)")
UNINDENTED_SPEAKER, UNINDENTED_LINE = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"(.*)")
LAST_LINE = 124195  # of the plays in that edition, its first line not counted


class Said(NamedTuple):
    """A line of a play, by whom, and the number of the speech to which it belongs."""

    role: str
    speech: int
    line: str


def shakespeare(path: str | Path, encode: Encoder = encode_characters, fewest: int = 3) -> Iterator[Block]:
    """The roles of a Complete Works text with at least `fewest` lines (LEAF: 3), a block of encoded speeches each."""
    found = False
    for name, speeches in roles(path).items():
        if sum(speech.count("\n") + 1 for speech in speeches) >= fewest:
            found = True
            yield from in_pieces(name, encode(speeches))
    require(found, f"'{path}' must have plays with roles, but none was found; only the older edition can be divided.")


def roles(path: str | Path) -> dict[str, list[str]]:
    """Speeches by "PLAY_ROLE", the lines of a speech joined by newlines; plays of only one role are left out."""
    with reading(path, "a text in UTF-8"), Path(path).open(encoding="utf-8-sig") as file:
        lines = [line.rstrip("\n") for line in file][1 : LAST_LINE + 2]
    starts = [number for number, line in enumerate(lines) if AUTHOR in line]
    speeches: dict[str, list[str]] = defaultdict(list)
    for start, end in _plays(starts, len(lines)):
        said = list(_said(lines[start + 1 : end], title := _title(path, lines[:start])))
        if len({each.role for each in said}) > 1:
            for (role, _), spoken in groupby(said, key=lambda each: each[:2]):
                speeches[_name(title, role)].append("\n".join(each.line for each in spoken))
    return dict(speeches)


def _plays(starts: list[int], end: int) -> list[tuple[int, int]]:
    """From each author's line to the next. The first of several is the whole book's, not a play's."""
    kept = starts[1:] if len(starts) > 1 else starts
    return list(zip(kept, [*kept[1:], end], strict=True)) if kept else []


def _title(path: str | Path, above: list[str]) -> str:
    """The nearest line that is not empty, from two to seven lines above the author's."""
    near = [line.strip() for line in above[-7:-1] if line.strip()]
    require(bool(near), f"'{path}' must have a title above '{AUTHOR}', but line {len(above) + 2} has none.")
    return near[-1]


def _said(lines: list[str], title: str) -> Iterator[Said]:
    """Who says what, line by line; a name in other letters (Toby, TOBY) is the same role."""
    flat, role, speech = title == UNINDENTED, "", 0
    for line in lines:
        if match := (UNINDENTED_SPEAKER if flat else SPEAKER).match(line):
            role, speech = match[1].upper(), speech + 1
            if flat and role.startswith("ACT "):
                role = ""
            else:
                yield Said(role, speech, match[2])
        elif role and (match := (UNINDENTED_LINE if flat else LINE).match(line)):
            if flat and match[1].startswith("<"):
                role = ""
            else:
                yield Said(role, speech, match[1])


def _name(title: str, role: str) -> str:
    return re.sub(r"\W+", "_", f"{title}_{role}".replace(" ", "_"))
