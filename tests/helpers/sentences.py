"""The form that every message about bad input has."""

from collections.abc import Callable
from typing import Any

import pytest

from fedtailor.errors import InputError


def assert_refused(call: Callable[[], Any], pattern: str) -> None:
    """Assert that a call raises `InputError` with one sentence that matches a pattern."""
    with pytest.raises(InputError, match=pattern) as caught:
        call()
    message = str(caught.value)
    assert message.endswith(".")
    assert not message.endswith("..")
    assert ". " not in message
    assert "\n" not in message
