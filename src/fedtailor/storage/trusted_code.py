"""Code that this user has run, or has allowed to run: the digests of files with it.

Folders of runs and models hold a copy of the user's model file, and such a folder may come from
elsewhere. What is trusted is therefore kept outside of them, one empty file for each digest:

    STATE/trusted-code/SHA256
"""

import hashlib
from pathlib import Path

from fedtailor.errors import require
from fedtailor.storage.atomic import explain_disk_errors
from fedtailor.storage.paths import STATE_DIR_ENV, state_dir


def trust_code(source: bytes) -> None:
    """Remember the content of a file with code, so that it is run without asking."""
    path = _get_path(source)
    remedy = f"the code of models is remembered there, so set {STATE_DIR_ENV} to another folder."
    with explain_disk_errors(path, remedy):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch()


def require_trusted_code(path: Path, source: bytes) -> None:
    """Raise an InputError for code that is not trusted.

    Args:
        path: The file, for the message.
        source: Its content.
    """
    require(
        _get_path(source).exists(),
        f"'{path}' is Python code that this machine has not run before, and which can do anything "
        "that you can; look at the file, then repeat with --trust-code.",
    )


def _get_path(source: bytes) -> Path:
    return state_dir() / "trusted-code" / hashlib.sha256(source).hexdigest()
