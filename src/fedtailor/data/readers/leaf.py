"""LEAF's JSON files: folders `train` and `test`, each with files of users and their examples.

The text of a file (some hundred MB) is in RAM as a whole, but is decoded user by user. A user's
test examples are yielded after their training examples. LEAF lists the same users in the same
order in the files of both folders, so about one file's test examples are in RAM at a time; test
files are decoded twice, first to learn which users they have.
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
    format_location,
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
"""Turns a file's path, a user and the lists x and y of the file into columns."""

WINDOW_LENGTH = 80
_WHITESPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def femnist(folder: str | Path) -> Iterator[Block]:
    """Read FEMNIST by writer: images [n, 1, 28, 28], upright, dark on white (255 is background).

    Labels 0 to 61 are 0-9, A-Z, a-z.
    """
    return _read_blocks(Path(folder), _decode_images)


def shakespeare(folder: str | Path) -> Iterator[Block]:
    """Read Shakespeare by role: "x" [n, 80] are ids of characters, "y" [n] is the next one's id.

    Ids are those of `text.get_character_ids`.
    """
    return _read_blocks(Path(folder), _decode_characters)


def _decode_images(path: Path, user: str, x: Any, y: Any) -> Columns:
    location = format_location(path, user)
    return {
        "x": parse_pixels(location, x, (1, 28, 28)),
        "y": parse_labels(location, y, classes=62),
    }


def _decode_characters(path: Path, user: str, x: Any, y: Any) -> Columns:
    has_windows = all(isinstance(window, str) and len(window) == WINDOW_LENGTH for window in x)
    require(
        has_windows,
        f"'{path}' must have windows of {WINDOW_LENGTH} characters, but some of '{user}' are not.",
    )
    has_labels = all(isinstance(character, str) and len(character) == 1 for character in y)
    require(
        has_labels,
        f"'{path}' must have one character as the label of each example, but '{user}' has others.",
    )
    return {
        "x": get_character_ids("".join(x)).reshape(-1, WINDOW_LENGTH),
        "y": get_character_ids("".join(y)),
    }


def _read_blocks(folder: Path, decode: Decode) -> Iterator[Block]:
    train_paths = sorted((folder / "train").glob("*.json"))
    test_paths = sorted((folder / "test").glob("*.json"))
    has_train = bool(train_paths)
    require(has_train, f"'{folder}' must have a folder 'train' with .json files, but has none.")
    user_test_paths = _locate_users(test_paths, decode)
    pending: dict[str, Columns] = {}  # test examples that are decoded, but not yielded yet
    seen: set[str] = set()
    for path in train_paths:
        for user, columns in _read_users(path, decode):
            _require_new_user(path, user, seen)
            seen.add(user)
            yield from split_into_blocks(user, add_test_column(columns, is_test=False))
            if user not in user_test_paths:
                continue
            if user not in pending:
                pending.update(_read_users(user_test_paths[user], decode))
            test_columns = add_test_column(pending.pop(user), is_test=True)
            yield from split_into_blocks(user, test_columns)
    # In a split by user, the users of the test part are not in the train part.
    for path in test_paths:
        for user, columns in _read_users(path, decode):
            if user not in seen:
                yield from split_into_blocks(user, add_test_column(columns, is_test=True))


def _locate_users(paths: list[Path], decode: Decode) -> dict[str, Path]:
    """Return the file of every user."""
    user_paths: dict[str, Path] = {}
    for path in paths:
        for user, _ in _read_users(path, decode):
            _require_new_user(path, user, user_paths)
            user_paths[user] = path
    return user_paths


def _require_new_user(path: Path, user: str, earlier: Collection[str]) -> None:
    require(user not in earlier, f"'{path}' must not have '{user}' again: it came before.")


def _read_users(path: Path, decode: Decode) -> Iterator[tuple[str, Columns]]:
    """Yield the users of a file that have examples, with their columns."""
    with translate_read_errors(path, "a file of LEAF"):
        reader = _JsonReader(path.read_text("utf-8"))
        has_users = False
        for key in reader.iter_members():
            if key != "user_data":
                reader.read_value()  # skip it
                continue
            has_users = True
            for user in reader.iter_members():
                examples = reader.read_value()
                _require_examples(path, user, examples)
                if examples["x"]:
                    yield user, decode(path, user, examples["x"], examples["y"])
        require(has_users, f"'{path}' must have 'user_data', as files of LEAF do.")
        reader.expect_end()


def _require_examples(path: Path, user: str, examples: Any) -> None:
    """Refuse what is not a dict with equally long lists x and y."""
    has_lists = isinstance(examples, dict) and all(
        isinstance(examples.get(name), list) for name in "xy"
    )
    require(has_lists, f"'{path}' must have lists x and y of every user, but '{user}' has not.")
    require_equal_lengths(path, f"'{user}'", x=examples["x"], y=examples["y"])


class _JsonReader:
    """Reads a JSON text value by value; an object member by member, without decoding all of it.

    Anything unexpected is a ValueError.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def read_value(self) -> Any:
        """Decode the next value."""
        self._peek()
        value, self.position = _DECODER.raw_decode(self.text, self.position)
        return value

    def iter_members(self) -> Iterator[str]:
        """Yield the keys of the next object; read each one's value before asking for the next."""
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
        """Refuse anything but whitespace after the values that were read."""
        if self._peek():
            raise ValueError(f"expected the end at character {self.position}")

    def _peek(self) -> str:
        """Skip whitespace and return the next character, "" at the end."""
        whitespace = _WHITESPACE.match(self.text, self.position)
        assert whitespace is not None  # the pattern matches anywhere
        self.position = whitespace.end()
        return self.text[self.position : self.position + 1]

    def _expect(self, *signs: str) -> str:
        """Read and return the next character, which must be one of the signs."""
        sign = self._peek()
        if sign not in signs:
            expected = " or ".join(signs)
            came = sign or "the end"
            raise ValueError(f"expected {expected} at character {self.position}, got {came}")
        self.position += 1
        return sign
