"""What all tests have in common: a state directory of their own."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _state_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the tests from reading and writing what the user trusts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDTAILOR_STATE", str(tmp_path_factory.mktemp("state")))
        yield
