"""Values of a record that are None until they are known."""

from typing import TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    """Return a value of which a test expects that it is not None."""
    assert value is not None
    return value
