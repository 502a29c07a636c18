"""Errors: their messages stay on one line, and survive the way between processes."""

import pickle

import pytest

from fedtailor.errors import (
    DivergedError,
    FedtailorError,
    InputError,
    LostRankError,
    RoutineError,
    summarize_error,
)
from fedtailor.storage.atomic import DiskError
from fedtailor.storage.manifest import DamagedFileError
from fedtailor.storage.typed_json import UnsupportedFormatError

CLASSES = (FedtailorError, InputError, RoutineError, DivergedError, LostRankError, DiskError)


@pytest.mark.parametrize("error_class", [*CLASSES, UnsupportedFormatError, DamagedFileError])
def test_a_name_from_outside_leaves_a_message_one_line(error_class: type[FedtailorError]) -> None:
    error = error_class("There is no 'a\nb\r\x1b[31m\u202e'.")
    assert str(error) == r"There is no 'a\nb\r\x1b[31m\u202e'."
    assert str(error_class(str(error))) == str(error)


@pytest.mark.parametrize("error_class", [*CLASSES, UnsupportedFormatError])
def test_errors_pickle(error_class: type[FedtailorError]) -> None:
    copied = pickle.loads(pickle.dumps(error_class("It failed.")))
    assert type(copied) is error_class
    assert str(copied) == "It failed."


def test_a_damaged_file_comes_back_from_another_process_with_its_damage() -> None:
    error = DamagedFileError("'a.json' is missing; put it back.", "is missing")
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is DamagedFileError
    assert str(copied) == str(error)
    assert copied.damage == "is missing"


@pytest.mark.parametrize(
    ("error", "summary", "text"),
    [
        (ValueError("It is bad. Go away.\nNow"), "ValueError: It is bad; Go away", None),
        (KeyError("a\nb"), r"KeyError: 'a\nb'", None),
        (EOFError(), "EOFError", "EOFError"),
        (ValueError("x" * 300), f"ValueError: {'x' * 200} ...", None),
        (OSError("cannot read it:"), "OSError: cannot read it", None),
    ],
)
def test_an_error_is_summarized_as_a_part_of_a_sentence(
    error: Exception, summary: str, text: str | None
) -> None:
    assert summarize_error(error) == summary
    expected = summary.partition(": ")[2] if text is None else text
    assert summarize_error(error, has_type=False) == expected
