"""What may change when a run is resumed: its number of rounds, and keys that change no figure.

Every other key would make one record of two different runs. More rounds are as good as asked for
from the start: random draws depend on the round alone, the state of the last round is saved, and
where a hyper-parameter follows from the number of rounds the change is refused. Only the rounds
with evaluations stay where they were, so what the run equals is one with the same `evaluate_every`.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.data.dataset import FederatedDataset
from fedtailor.errors import require
from fedtailor.training import from_config
from fedtailor.training.checkpoint import CheckpointManager
from fedtailor.training.config import RunConfig
from fedtailor.training.overrides import validate_config
from fedtailor.training.record.schema import RunRecord
from fedtailor.training.run_dir import RunDir
from fedtailor.training.shell_commands import (
    format_program,
    format_run_command,
    format_value,
)

RESUME_KEYS = ("rounds", "checkpoint_every", "client_state", "log")
"""Keys that may change.

Those of the engine are not among them: other ones may change the last digits, and a run keeps the
choices of its start.
"""


def change_config(run_dir: RunDir, config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """Return the specification of a run with other values for some keys.

    Args:
        run_dir: The folder of the run.
        config: Its specification.
        changes: The new values by key.

    Raises:
        InputError: A key may not change, or the run cannot have that many rounds.
    """
    for key, value in changes.items():
        require(
            key in RESUME_KEYS,
            f"resume: only {', '.join(RESUME_KEYS)} may change in a run, not {key}; begin a new "
            "run from its weights with: "
            f"{_format_branch_command(run_dir.path, f'{key}={format_value(value)}')}",
        )
    changed_config = validate_config(RunConfig, config.model_dump() | dict(changes))
    if changed_config.rounds != config.rounds:
        _check_rounds(run_dir, config, changed_config.rounds)
    return changed_config


def _check_rounds(run_dir: RunDir, config: RunConfig, rounds: int) -> None:
    """Raise an InputError if a run cannot go on to that number of rounds."""
    path = run_dir.path
    require(
        config.budget == "rounds",
        f"resume: the {config.rounds} rounds of the run in '{path}' follow from "
        f"budget={config.budget}, so there can be neither more nor fewer; begin a new run from its "
        f"weights with: {_format_branch_command(path, f'rounds={rounds}')}",
    )
    require(
        run_dir.read_status() != "diverged",
        f"resume: the run in '{path}' has diverged, so it cannot go on; begin another one with a "
        "lower learning rate (lr).",
    )
    stopped_early_after = None
    if run_dir.has_record():
        stopped_early_after = run_dir.read_stored_record().stopped_early_after
    require(
        stopped_early_after is None,
        f"resume: the run in '{path}' has stopped after {stopped_early_after} rounds since "
        f"patience={config.patience}, as it would have with {rounds}; begin a new run from its "
        f"weights with: {_format_branch_command(path, f'rounds={rounds}')}",
    )
    rounds_done = CheckpointManager(path, None).find_last_round()
    require(
        rounds >= rounds_done,
        f"resume: the run in '{path}' has done {rounds_done} rounds already, so there cannot be "
        f"{rounds}; ask for more, or begin a new run with: "
        f"{format_run_command(config.model_copy(update={'rounds': rounds}), Path('NEW'))}",
    )


def check_same_hparams(
    run_dir: RunDir, config: RunConfig, changed_config: RunConfig, data: FederatedDataset
) -> None:
    """Raise an InputError if a hyper-parameter follows from the number of rounds, which changes.

    Args:
        run_dir: The folder of the run.
        config: Its specification.
        changed_config: Its specification from now on.
        data: The data set that both name.
    """
    old_hparams = from_config.resolve_hparams(config, data)
    new_hparams = from_config.resolve_hparams(changed_config, data)
    rounds = changed_config.rounds
    for name, value in new_hparams.items():
        require(
            value == old_hparams[name],
            f"resume: {config.method} has computed {name}={format_value(old_hparams[name])} from "
            f"the {config.rounds} rounds that the run in '{run_dir.path}' began with, and with "
            f"{rounds} it would have been {format_value(value)} from the first round on; begin a "
            f"new run with rounds={rounds}, or one from its weights with: "
            f"{_format_branch_command(run_dir.path, f'rounds={rounds}')}",
        )


def change_record(record: RunRecord, config: RunConfig, out: Path) -> RunRecord:
    """Return the record of a run that goes on with a changed specification.

    What is known at the end of a run is not known any more.

    Args:
        record: The record of the run.
        config: Its specification from now on.
        out: Its folder.
    """
    previous_rounds = record.previous_rounds
    if config.rounds != record.config.rounds:
        previous_rounds = (*previous_rounds, record.config.rounds)
    return record.model_copy(
        update={
            "config": config,
            "previous_rounds": previous_rounds,
            "command": format_run_command(config, out),
            "scores": None,
            "summary": None,
            "final_window": None,
            "convergence": None,
        }
    )


def describe_change(old_config: RunConfig, config: RunConfig, other_compile_choice: str) -> str:
    """Return a note that says which run the changed one equals; "" if its rounds stay the same.

    Args:
        old_config: The specification before.
        config: The specification from now on.
        other_compile_choice: How a new run would be compiled, "" if as this one.
    """
    if config.rounds == old_config.rounds:
        return ""
    note = (
        f"{config.rounds} rounds, of which {old_config.rounds} were asked for at first: the "
        f"figures equal those of a run with rounds={config.rounds} "
        f"evaluate_every={config.evaluate_every}"
    )
    if other_compile_choice:
        note += f", but for the last digits, since that one {other_compile_choice}"
    return note


def _format_branch_command(out: Path, change: str) -> str:
    """Return the command that begins a new run from the weights of another one."""
    return f"{format_program()} run --from {shlex.quote(str(out))} {shlex.quote(change)} out=NEW"
