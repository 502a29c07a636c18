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

from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.data.readers.files import (
    add_test_column,
    parse_labels,
    parse_pixels,
    require_equal_lengths,
    split_into_blocks,
    translate_read_errors,
)
from fedtailor.data.readers.text import get_character_ids
from fedtailor.errors import require

Columns = dict[str, Array]
Decode = Callable[[Path, str, Any, Any], Columns]

WHITESPACE = re.compile(r"[ \t\n\r]*")
DECODER = json.JSONDecoder()
WINDOW_LENGTH = 80


def femnist(folder: str | Path) -> Iterator[Block]:
    """FEMNIST by writer: images [n, 1, 28, 28] dark on white (255 is background) and upright, as LEAF ships them.

    Labels 0 to 61 are 0-9, A-Z, a-z.
    """
    return _read_blocks(Path(folder), _decode_images)


def shakespeare(folder: str | Path) -> Iterator[Block]:
    """Shakespeare by role: "x" [n, 80] are characters (`text.get_character_ids`) and "y" [n] is the next one."""
    return _read_blocks(Path(folder), _decode_characters)


def _decode_images(path: Path, user: str, x: Any, y: Any) -> Columns:
    label = f"{path}' of '{user}"
    return {"x": parse_pixels(label, x, (1, 28, 28)), "y": parse_labels(label, y, 62)}


def _decode_characters(path: Path, user: str, x: Any, y: Any) -> Columns:
    good = all(isinstance(window, str) and len(window) == WINDOW_LENGTH for window in x)
    require(
        good,
        f"'{path}' must have windows of {WINDOW_LENGTH} characters, but some of '{user}' are not.",
    )
    good = all(isinstance(character, str) and len(character) == 1 for character in y)
    require(
        good,
        f"'{path}' must have one character as the label of each example, but '{user}' has others.",
    )
    return {
        "x": get_character_ids("".join(x)).reshape(-1, WINDOW_LENGTH),
        "y": get_character_ids("".join(y)),
    }


def _read_blocks(folder: Path, decode: Decode) -> Iterator[Block]:
    train, test = (sorted((folder / name).glob("*.json")) for name in ("train", "test"))
    require(bool(train), f"'{folder}' must have a folder 'train' with .json files, but has none.")
    where: dict[str, Path] = {}
    for path in test:
        for user, _ in _read_users(path, decode):
            _require_new_user(path, user, where)
            where[user] = path
    pending: dict[str, Columns] = {}
    seen: set[str] = set()
    for path in train:
        for user, columns in _read_users(path, decode):
            _require_new_user(path, user, seen)
            seen.add(user)
            yield from split_into_blocks(user, add_test_column(columns, is_test=False))
            if user in where and user not in pending:
                pending |= dict(_read_users(where[user], decode))
            if user in pending:
                yield from split_into_blocks(user, add_test_column(pending.pop(user), is_test=True))
    for path in test:  # of a split by user, in which nobody is in both parts
        for user, columns in _read_users(path, decode):
            if user not in seen:
                yield from split_into_blocks(user, add_test_column(columns, is_test=True))


def _require_new_user(path: Path, user: str, earlier: Collection[str]) -> None:
    require(user not in earlier, f"'{path}' must not have '{user}' again: it came before.")


def _read_users(path: Path, decode: Decode) -> Iterator[tuple[str, Columns]]:
    """Every user of a file with its columns."""
    with translate_read_errors(path, "a file of LEAF"):
        text = _JsonReader(path.read_text("utf-8"))
        found = False
        for key in text.iter_members():
            if key != "user_data":
                text.read_value()
                continue
            found = True
            for user in text.iter_members():
                data = text.read_value()
                good = isinstance(data, dict) and all(
                    isinstance(data.get(name), list) for name in "xy"
                )
                require(
                    good, f"'{path}' must have lists x and y of every user, but '{user}' has not."
                )
                require_equal_lengths(path, f"'{user}'", x=data["x"], y=data["y"])
                if data["x"]:
                    yield user, decode(path, user, data["x"], data["y"])
        require(found, f"'{path}' must have 'user_data', as files of LEAF do.")
        text.expect_end()


class _JsonReader:
    """Walks through a JSON text; of an object, member by member without decoding all of it."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0

    def _peek(self) -> str:
        self.position = WHITESPACE.match(self.text, self.position).end()  # type: ignore[union-attr]  # matches anywhere
        return self.text[self.position : self.position + 1]

    def _expect(self, *signs: str) -> str:
        sign = self._peek()
        if sign not in signs:
            raise ValueError(
                f"expected {' or '.join(signs)} at character {self.position}, got {sign or 'the end'}"
            )
        self.position += 1
        return sign

    def read_value(self) -> Any:
        """The value that comes next, decoded."""
        self._peek()
        found, self.position = DECODER.raw_decode(self.text, self.position)
        return found

    def iter_members(self) -> Iterator[str]:
        """The keys of the object that comes next; take the value of each before asking for another."""
        self._expect("{")
        if self._peek() == "}":
            self.position += 1
            return
        sign = ","
        while sign == ",":
            key = self.read_value()
            if not isinstance(key, str):
                raise ValueError(f"expected a name at character {self.position}")
            self._expect(":")
            yield key
            sign = self._expect(",", "}")

    def expect_end(self) -> None:
        """Refuses anything but space after what was read."""
        if self._peek():
            raise ValueError(f"expected the end at character {self.position}")
