"""Typed JSON files: what is written is read back, and whatever else is there is refused."""

import json
import re
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict

from fedtailor.errors import InputError
from fedtailor.storage.typed_json import (
    UnsupportedFormatError,
    parse_model,
    read_versioned,
    write_model,
)


class Note(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: Literal[3] = 3
    text: str
    sizes: list[int] = []


NOTE = Note(text="one", sizes=[4, 5])


def test_a_model_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    write_model(tmp_path / "note.json", NOTE)
    written = json.loads((tmp_path / "note.json").read_text())
    assert written == {"format": 3, "text": "one", "sizes": [4, 5]}
    content = (tmp_path / "note.json").read_bytes()
    assert parse_model(tmp_path / "note.json", content, Note) == NOTE
    assert read_versioned(tmp_path / "note.json", Note) == NOTE


@pytest.mark.parametrize(
    ("content", "location"),
    [
        ('{"format": 3, "text": "one", "sizes": [4, "x"]}', "sizes.1"),
        ('{"format": 3, "sizes": []}', "text"),
        ('{"format": 3, "text": "one", "more": 1}', "more"),
        ('{"format": "3", "text": "one"}', "format"),
    ],
)
def test_what_a_type_does_not_allow_is_named(content: str, location: str, tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    path.write_text(content)
    sentence = f"^'{re.escape(str(path))}' is damaged: {location} is not what was written.$"
    with pytest.raises(InputError, match=sentence):
        parse_model(path, path.read_bytes(), Note)
    with pytest.raises(InputError, match=sentence):
        read_versioned(path, Note)


@pytest.mark.parametrize("content", ['{"text": "one"}', "[]", '"text"'])
def test_a_file_without_a_format_is_damaged_where_one_is_needed(
    content: str, tmp_path: Path
) -> None:
    path = tmp_path / "note.json"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_versioned(path, Note)
    assert not isinstance(caught.value, UnsupportedFormatError)
    assert str(caught.value) == f"'{path}' is damaged: format is not what was written."


def test_another_format_is_told_from_damage(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    path.write_text('{"format": 4, "other": 1}')
    with pytest.raises(UnsupportedFormatError) as caught:
        read_versioned(path, Note)
    assert str(caught.value) == (
        f"'{path}' was written in format 4, but this fedtailor reads format 3; "
        "use the version that wrote it."
    )
