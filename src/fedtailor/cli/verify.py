"""The command verify: is everything in a folder what was written?"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtailor.cli.terminal import format_path, print_text
from fedtailor.errors import InputError, require

if TYPE_CHECKING:
    from fedtailor.training.verification import Verification


def verify(
    target: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="The folder of a run, a comparison, a study or a model, or a data set's name.",
            show_default=False,
        ),
    ],
) -> None:
    """Read everything in a folder, and say whether it is what was written.

    Of a damaged run, what survives is named, with the command that goes on from it; the exit code
    is 2 then. Damage and careless edits are found, but not an attacker who rewrites the checksums.

    Examples:

        fedtailor verify DIR

        fedtailor verify mnist
    """
    folder = Path(target)
    if _is_store(target, folder):
        _verify_store(folder.name)
        return
    require(folder.is_dir(), f"There is no folder '{folder}'.")
    folders = list(_find_folders(folder))
    require(bool(folders), f"'{folder}' holds no run, model or data set.")
    sentences = {path: _verify_folder(path) for path in folders}
    damaged = {path: sentence for path, sentence in sentences.items() if sentence}
    if len(folders) == 1 and damaged:
        raise InputError(damaged[folders[0]])
    for sentence in damaged.values():
        print_text(sentence)
    names = ", ".join(path.name for path in damaged)
    require(
        not damaged, f"{len(damaged)} of {len(folders)} folders in '{folder}' are damaged: {names}."
    )
    print_text(f"Everything in {format_path(folder)} is what was written.")


COMMANDS = (verify,)
NEED_ARGS = (verify,)


def _is_store(target: str, folder: Path) -> bool:
    """Return whether a store is meant, by its name or its folder."""
    from fedtailor.data.store.manifest import get_stores_dir

    if folder.exists():
        return folder.resolve().parent == get_stores_dir().resolve()
    return target == folder.name


def _verify_store(name: str) -> None:
    from fedtailor.data.store import open_store

    open_store(name).verify()
    print_text(f"The data set {name} is what was written.")


def _find_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders of runs and models, which may be the folder itself."""
    if _get_kind(folder):
        yield folder
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _find_folders(path)


def _get_kind(folder: Path) -> str:
    """Return what a folder holds, "run" or "model"; "" if it is neither."""
    from fedtailor.personalization.service import METADATA_FILE, MODEL_KIND
    from fedtailor.storage.manifest import ListedFolder
    from fedtailor.training.run_dir import CONFIG_FILE, RECORD_FILE, ROUNDS_FILE, RUN_KIND

    try:
        return ListedFolder(folder).read_manifest().kind
    except InputError:
        pass
    if (folder / METADATA_FILE).exists():
        return MODEL_KIND
    has_run = any((folder / name).exists() for name in (CONFIG_FILE, RECORD_FILE, ROUNDS_FILE))
    return RUN_KIND if has_run else ""


def _verify_folder(folder: Path) -> str:
    """Print a line for everything in a folder, and return a sentence if it is damaged."""
    from fedtailor.training.run_dir import RUN_KIND, RunDir
    from fedtailor.training.verification import verify_run

    if _get_kind(folder) == RUN_KIND:
        verification = verify_run(RunDir(folder))
    else:
        verification = _verify_model(folder)
    for name, problem in verification.problems.items():
        print_text(f"{folder / name}: {problem or 'is what was written'}")
    damaged_names = verification.list_damaged()
    if not damaged_names:
        return ""
    return f"'{folder}' is damaged ({', '.join(damaged_names)}); {verification.remedy}"


def _verify_model(folder: Path) -> "Verification":
    from fedtailor.storage.manifest import MANIFEST_FILE, ListedFolder
    from fedtailor.training.verification import Verification

    remedy = "write the model again with `fedtailor personalize` or `fedtailor export`."
    try:
        problems = ListedFolder(folder).find_problems()
    except InputError as problem:
        return Verification({MANIFEST_FILE: str(problem)}, remedy)
    return Verification({MANIFEST_FILE: "", **problems}, remedy)
