"""The files of a cached scenario: arrays, and one of JSON that has checksums of all of them."""

from pathlib import Path
from typing import Literal

from pydantic import JsonValue, ValidationError

from fedtailor.data.store.manifest import StoredFile
from fedtailor.errors import InputError
from fedtailor.storage.checksums import fingerprint, write_file
from fedtailor.storage.manifest import SealedModel
from fedtailor.storage.typed_json import encode_model

SCENARIO_FORMAT = 3
"""Version of the files of a scenario."""

SCENARIOS_DIR = "scenarios"
"""Folder of a store that has a folder for each scenario."""

_SCENARIO_FILE = "scenario.json"


class ScenarioDamageError(Exception):
    """A scenario whose files are not those that were written."""


class ScenarioFile(SealedModel):
    """The content of `scenario.json`, of which `store` and `options` are for humans alone."""

    format: Literal[3]
    store: str  # content hash of the store
    options: dict[str, JsonValue]
    splits: dict[str, str]  # first name of the same split, under which its arrays are kept
    arrays: tuple[str, ...]
    files: tuple[StoredFile, ...]  # all others in the folder


def write_scenario_file(folder: Path, content: ScenarioFile) -> None:
    """Write `scenario.json` into a folder, with a checksum of itself."""
    write_file(folder / _SCENARIO_FILE, encode_model(content.seal()))


def read_scenario_file(folder: Path) -> ScenarioFile:
    """Return the content of `scenario.json` after verifying it and all files that it names."""
    try:
        content = ScenarioFile.model_validate_json((folder / _SCENARIO_FILE).read_bytes())
        is_intact = content.is_intact()
    except (OSError, ValidationError):
        is_intact = False
    if not is_intact:
        raise ScenarioDamageError(f"'{_SCENARIO_FILE}' is not what was written")
    for file in content.files:
        try:
            is_intact = fingerprint(folder / file.name) == file
        except OSError:
            is_intact = False
        if not is_intact:
            raise ScenarioDamageError(f"'{file.name}' is not what was written")
    return content


def verify_scenarios(name: str, store_folder: Path) -> None:
    """Raise `InputError` for a damaged scenario of the store called `name`."""
    for folder in sorted((store_folder / SCENARIOS_DIR).glob("[!.]*")):
        try:
            read_scenario_file(folder)
        except ScenarioDamageError as problem:
            raise InputError(
                f"{name}: the scenario in '{folder}' is damaged, {problem}; delete that folder, "
                "which is built again when it is needed."
            ) from None
