"""Verification of the folder of a run: all of it is read, and what survives is named."""

from pathlib import Path
from typing import NamedTuple

from fedtailor.errors import InputError
from fedtailor.storage.manifest import MANIFEST_FILE
from fedtailor.training.checkpoint import CheckpointManager
from fedtailor.training.record.schema import RunRecord
from fedtailor.training.run_dir import (
    CONFIG_FILE,
    CUSTOM_MODEL_FILE,
    RECORD_FILE,
    ROUNDS_FILE,
    RunDir,
)
from fedtailor.training.shell_commands import format_resume_command, format_run_command

_NEEDED_TO_RESUME = (MANIFEST_FILE, CONFIG_FILE, RECORD_FILE, CUSTOM_MODEL_FILE)


class Verification(NamedTuple):
    """What was found in a folder."""

    problems: dict[str, str]  # what is wrong with each file or checkpoint by name, "" if nothing is
    remedy: str  # end of a sentence: what survives, and the command that goes on from it

    def list_damaged(self) -> list[str]:
        """Return the names of what is not what was written."""
        return [name for name, problem in self.problems.items() if problem]


def verify_run(run_dir: RunDir) -> Verification:
    """Read everything in the folder of a run, on which no other process may work meanwhile."""
    with run_dir.lock():
        problems = _find_file_problems(run_dir)
        record = None
        if problems.get(RECORD_FILE) == "":
            record = run_dir.read_record_file()
            if problems.get(CONFIG_FILE) == "":
                run_dir.read_stored_record()
        round_log = run_dir.open_round_log()
        problems[ROUNDS_FILE] = _find_log_problem(round_log.damage, len(round_log.entries), record)
        config_checksum = record.checksums.config if record is not None else None
        manager = CheckpointManager(run_dir.path, round_log, config_checksum)
        checkpoints = manager.find_problems()
        has_model = _has_intact_model(run_dir, record)
    intact_rounds = [num_rounds for num_rounds, problem in checkpoints.items() if not problem]
    if record is not None and record.status in ("finished", "interrupted"):
        checkpoints.setdefault(len(record.rounds), "is missing")
    for num_rounds, problem in sorted(checkpoints.items()):
        problems[f"checkpoints/{num_rounds:06}"] = problem.removesuffix(".")
    can_resume = not any(problems.get(name) for name in _NEEDED_TO_RESUME)
    has_ended = record is not None and record.status in ("finished", "diverged")
    if can_resume and not has_ended and (intact_rounds or not checkpoints):
        command = format_resume_command(run_dir.path)
        start = f"checkpoint {max(intact_rounds)}" if intact_rounds else "the first round"
        return Verification(problems, f"go on from {start} with: {command}")
    return Verification(problems, _format_remedy(problems, record, has_model))


def _find_file_problems(run_dir: RunDir) -> dict[str, str]:
    try:
        return {MANIFEST_FILE: "", **run_dir.find_problems()}
    except InputError as problem:
        return {MANIFEST_FILE: str(problem)}


def _has_intact_model(run_dir: RunDir, record: RunRecord | None) -> bool:
    """Return whether the last checkpoint of a finished run is whole, whatever its rounds are."""
    if record is None or record.status != "finished":
        return False
    states = CheckpointManager(run_dir.path, None, record.checksums.config).find_problems()
    return states.get(len(record.rounds)) == ""


def _find_log_problem(damage: str, num_rounds: int, record: RunRecord | None) -> str:
    """Return what is wrong with the log of rounds, "" if nothing is.

    Args:
        damage: What is wrong with its lines.
        num_rounds: The rounds that it has.
        record: The record, None if it is damaged or not there.
    """
    if damage:
        return damage
    if record is not None and num_rounds < len(record.rounds):
        return f"has {num_rounds} of {len(record.rounds)} rounds"
    return ""


def _format_remedy(problems: dict[str, str], record: RunRecord | None, has_model: bool) -> str:
    """Return what survives of a run that cannot go on as it is, and what to do.

    Args:
        problems: What is wrong with each file or checkpoint.
        record: The record, None if it is damaged or not there.
        has_model: Whether the last checkpoint is whole but for the rounds that led to it.
    """
    survivors = [name for name, problem in problems.items() if not problem]
    text = f"what survives is {', '.join(survivors) or 'nothing'}"
    can_use_model = not any(problems.get(name) for name in _NEEDED_TO_RESUME)
    if has_model and can_use_model:
        text += " and the model, so `personalize` and `export` work"
    text += "; put back what was written"
    if record is None:
        return f"{text}."
    return f"{text}, or run it again with: {format_run_command(record.config, Path('NEW'))}"
