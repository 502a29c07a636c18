"""JSON files whose content is typed by a pydantic model, with or without the version of a format.

A file that cannot be read, or whose content its type does not allow, is an InputError.
"""

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fedtailor.errors import InputError
from fedtailor.storage.files import encode_json, parse_json, read_file, write_json

Model = TypeVar("Model", bound=BaseModel)


class UnsupportedFormatError(InputError):
    """Refusal of a file that another version of fedtailor wrote."""


def write_model(path: Path, content: BaseModel) -> None:
    """Replace a file by the JSON of a model."""
    write_json(path, content.model_dump(mode="json"))


def encode_model(content: BaseModel) -> bytes:
    """Return the JSON of a model, as `write_model` writes it."""
    return encode_json(content.model_dump(mode="json"))


def parse_model(path: Path, json_bytes: bytes, model_class: type[Model]) -> Model:
    """Return the typed content of a JSON file, which has been read already.

    Args:
        path: The file, for messages.
        json_bytes: Its content.
        model_class: Its type.
    """
    return _validate(path, parse_json(path, json_bytes), model_class)


def read_versioned(path: Path, model_class: type[Model]) -> Model:
    """Return the typed content of a JSON file that carries the version of its format.

    Args:
        path: The file.
        model_class: Its type; the default of its field `format` is the version that is read.

    Raises:
        UnsupportedFormatError: The file has another version.
        InputError: The file has none, or content that its type does not allow.
    """
    return parse_versioned(path, read_file(path), model_class)


def parse_versioned(path: Path, json_bytes: bytes, model_class: type[Model]) -> Model:
    """Return what `read_versioned` does from the content of a file, which has been read already.

    Args:
        path: The file, for messages.
        json_bytes: Its content.
        model_class: Its type.
    """
    content: Any = parse_json(path, json_bytes)
    file_format = content.get("format") if isinstance(content, dict) else None
    supported_format = model_class.model_fields["format"].default
    if isinstance(file_format, int) and file_format != supported_format:
        raise UnsupportedFormatError(
            f"'{path}' was written in format {file_format}, but this fedtailor reads format "
            f"{supported_format}; use the version that wrote it."
        )
    if file_format is None:
        raise InputError(_describe_damage(path, "format"))
    return _validate(path, content, model_class)


def _validate(path: Path, content: Any, model_class: type[Model]) -> Model:
    try:
        return model_class.model_validate(content)
    except ValidationError as problem:
        location = ".".join(map(str, problem.errors()[0]["loc"]))
        raise InputError(_describe_damage(path, location)) from None


def _describe_damage(path: Path, location: str) -> str:
    return f"'{path}' is damaged: {location or 'its content'} is not what was written."


def format_line(entry: BaseModel) -> str:
    """Return a model as a line of a JSON Lines file."""
    return json.dumps(entry.model_dump(mode="json"), allow_nan=False) + "\n"
