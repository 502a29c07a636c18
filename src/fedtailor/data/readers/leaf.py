"""LEAF's JSON files: a folder with `train` and `test`, in each some files of users with their examples.

A file's text is held at once (LEAF's have some hundred MB), but decoded user by user, so its numbers never are. A
user's examples in `test` follow those in `train`; LEAF lists the same users in the files of both, in order, so that of
the test part too (which is decoded twice, once to see who is in it) only about one file's examples are held at a time.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from fedtailor.data.blocks import Block
from fedtailor.data.holders import Array
from fedtailor.data.readers.files import checked_labels, checked_pixels, equally_long, in_pieces, part, reading
from fedtailor.data.readers.text import character_ids
from fedtailor.errors import require

Columns = dict[str, Array]
Decode = Callable[[Path, str, Any, Any], Columns]

SPACE = re.compile(r"[ \t\n\r]*")
DECODER = json.JSONDecoder()
WINDOW = 80


def femnist(folder: str | Path) -> Iterator[Block]:
    """FEMNIST by writer: images [n, 1, 28, 28] dark on white (255 is background) and upright, as LEAF ships them.

    Labels 0 to 61 are 0-9, A-Z, a-z.
    """
    return _blocks(Path(folder), _images)


def shakespeare(folder: str | Path) -> Iterator[Block]:
    """Shakespeare by role: "x" [n, 80] are characters (`text.character_ids`) and "y" [n] is the next one."""
    return _blocks(Path(folder), _characters)


def _images(path: Path, user: str, x: Any, y: Any) -> Columns:
    label = f"{path}' of '{user}"
    return {"x": checked_pixels(label, x, (1, 28, 28)), "y": checked_labels(label, y, 62)}


def _characters(path: Path, user: str, x: Any, y: Any) -> Columns:
    good = all(isinstance(window, str) and len(window) == WINDOW for window in x)
    require(good, f"'{path}' must have windows of {WINDOW} characters, but some of '{user}' are not.")
    good = all(isinstance(character, str) and len(character) == 1 for character in y)
    require(good, f"'{path}' must have one character as the label of each example, but '{user}' has others.")
    return {"x": character_ids("".join(x)).reshape(-1, WINDOW), "y": character_ids("".join(y))}


def _blocks(folder: Path, decode: Decode) -> Iterator[Block]:
    train, test = (sorted((folder / name).glob("*.json")) for name in ("train", "test"))
    require(bool(train), f"'{folder}' must have a folder 'train' with .json files, but has none.")
    where: dict[str, Path] = {}
    for path in test:
        for user, _ in _users(path, decode):
            _once(path, user, where)
            where[user] = path
    held: dict[str, Columns] = {}
    seen: set[str] = set()
    for path in train:
        for user, columns in _users(path, decode):
            _once(path, user, seen)
            seen.add(user)
            yield from in_pieces(user, part(columns, testing=False))
            if user in where and user not in held:
                held |= dict(_users(where[user], decode))
            if user in held:
                yield from in_pieces(user, part(held.pop(user), testing=True))
    for path in test:  # of a split by user, in which nobody is in both parts
        for user, columns in _users(path, decode):
            if user not in seen:
                yield from in_pieces(user, part(columns, testing=True))


def _once(path: Path, user: str, earlier: Collection[str]) -> None:
    require(user not in earlier, f"'{path}' must not have '{user}' again: it came before.")


def _users(path: Path, decode: Decode) -> Iterator[tuple[str, Columns]]:
    """Every user of a file with its columns."""
    with reading(path, "a file of LEAF"):
        text = _Json(path.read_text("utf-8"))
        found = False
        for key in text.members():
            if key != "user_data":
                text.value()
                continue
            found = True
            for user in text.members():
                data = text.value()
                good = isinstance(data, dict) and all(isinstance(data.get(name), list) for name in "xy")
                require(good, f"'{path}' must have lists x and y of every user, but '{user}' has not.")
                equally_long(path, f"'{user}'", x=data["x"], y=data["y"])
                if data["x"]:
                    yield user, decode(path, user, data["x"], data["y"])
        require(found, f"'{path}' must have 'user_data', as files of LEAF do.")
        text.end()


class _Json:
    """Walks through a JSON text; of an object, member by member without decoding all of it."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def _next(self) -> str:
        self.at = SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]  # matches anywhere
        return self.text[self.at : self.at + 1]

    def _expect(self, *signs: str) -> str:
        sign = self._next()
        if sign not in signs:
            raise ValueError(f"expected {' or '.join(signs)} at character {self.at}, got {sign or 'the end'}")
        self.at += 1
        return sign

    def value(self) -> Any:
        """The value that comes next, decoded."""
        self._next()
        found, self.at = DECODER.raw_decode(self.text, self.at)
        return found

    def members(self) -> Iterator[str]:
        """The keys of the object that comes next; take the value of each before asking for another."""
        self._expect("{")
        if self._next() == "}":
            self.at += 1
            return
        sign = ","
        while sign == ",":
            key = self.value()
            if not isinstance(key, str):
                raise ValueError(f"expected a name at character {self.at}")
            self._expect(":")
            yield key
            sign = self._expect(",", "}")

    def end(self) -> None:
        """Refuses anything but space after what was read."""
        if self._next():
            raise ValueError(f"expected the end at character {self.at}")
