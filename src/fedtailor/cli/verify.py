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
            help="The folder of runs, trials, a study or a model, or a data set's name.",
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


_REMEDIES = {
    "model": "write the model again with `fedtailor personalize` or `fedtailor export`.",
    "trials": "put back the files that were written, or repeat the command with the same out.",
}
"""What to do about a damaged folder, by what it holds."""

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
    """Yield the folders that hold something, which may be the folder itself and others in it."""
    from fedtailor.personalization.service import MODEL_KIND
    from fedtailor.training.run_dir import RUN_KIND

    kind = _get_kind(folder)
    if kind:
        yield folder
    if kind in (RUN_KIND, MODEL_KIND):
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _find_folders(path)


def _get_kind(folder: Path) -> str:
    """Return what a folder holds: a run, a model, trials or a study; "" if it is none of them."""
    from fedtailor.experiments.tune import TRIALS_FILE, TRIALS_KIND
    from fedtailor.personalization.service import METADATA_FILE, MODEL_KIND
    from fedtailor.storage.manifest import ListedFolder
    from fedtailor.studies.execute import STUDY_KIND, STUDY_RECORD_FILE
    from fedtailor.training.run_dir import CONFIG_FILE, RECORD_FILE, ROUNDS_FILE, RUN_KIND

    try:
        return ListedFolder(folder).read_manifest().kind
    except InputError:
        pass
    own_files = {
        METADATA_FILE: MODEL_KIND,
        TRIALS_FILE: TRIALS_KIND,
        STUDY_RECORD_FILE: STUDY_KIND,
    }
    for name, kind in own_files.items():
        if (folder / name).exists():
            return kind
    has_run = any((folder / name).exists() for name in (CONFIG_FILE, RECORD_FILE, ROUNDS_FILE))
    return RUN_KIND if has_run else ""


def _verify_folder(folder: Path) -> str:
    """Print a line for everything in a folder, and return a sentence if it is damaged."""
    from fedtailor.training.run_dir import RUN_KIND, RunDir
    from fedtailor.training.verification import verify_run

    kind = _get_kind(folder)
    if kind == RUN_KIND:
        verification = verify_run(RunDir(folder))
    else:
        verification = _verify_files(folder, kind)
    for name, problem in verification.problems.items():
        print_text(f"{folder / name}: {problem or 'is what was written'}")
    damaged_names = verification.list_damaged()
    if not damaged_names:
        return ""
    return f"'{folder}' is damaged ({', '.join(damaged_names)}); {verification.remedy}"


def _verify_files(folder: Path, kind: str) -> "Verification":
    """Read the files that a folder's manifest lists, and the durations of a study's parts."""
    from fedtailor.storage.manifest import MANIFEST_FILE, ListedFolder
    from fedtailor.studies.execute import DURATIONS_FILE, STUDY_KIND, read_minutes
    from fedtailor.training.verification import Verification

    remedy = _REMEDIES.get(kind, "put back the files that were written.")
    try:
        problems = {MANIFEST_FILE: "", **ListedFolder(folder).find_problems()}
    except InputError as problem:
        problems = {MANIFEST_FILE: str(problem)}
    if kind == STUDY_KIND:
        for path in sorted(folder.glob(f"*/{DURATIONS_FILE}")):
            name = path.relative_to(folder).as_posix()
            try:
                read_minutes(path.parent.name, folder)
                problems[name] = ""
            except InputError as problem:
                problems[name] = str(problem)
    return Verification(problems, remedy)
