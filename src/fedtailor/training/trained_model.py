"""What a run has trained, as of its last checkpoint, loaded without its data."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedtailor import methods
from fedtailor.core.task import Task
from fedtailor.core.types import Method, ServerState, Tree
from fedtailor.data.dataset import ExampleSpec
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.engines.context import init_server_state
from fedtailor.engines.offered_states import select_offered
from fedtailor.errors import InputError, require
from fedtailor.training import from_config
from fedtailor.training.checkpoint import CheckpointManager
from fedtailor.training.record.schema import RunRecord
from fedtailor.training.run_dir import RunDir


class TrainedModel(NamedTuple):
    """The result of a run as far as an unseen client needs it."""

    method: Method
    task: Task
    state: ServerState  # after training
    example_spec: ExampleSpec  # form of the training data
    seed: int  # of the run
    offered_states: Tree | None = None  # stacked client states that a client may start from


def load_trained_model(out: Path) -> TrainedModel:
    """Load the model of a run as of its last checkpoint, without loading the run's data."""
    run_dir = RunDir(out)
    config = run_dir.read_config()
    record = run_dir.read_stored_record()
    data_summary = record.data
    example_spec = data_summary.example_spec
    task = from_config.build_task(config, example_spec, out)
    method = methods.build(config.method, task, **record.hparams)
    initial_state = init_server_state(method, task.params, config.seed, torch.device("cpu"))
    client_states = ClientStateStore(len(data_summary.clients))
    state = restore_server_state(run_dir, record, initial_state, method, client_states)
    train_ids = np.array(data_summary.groups["train"])
    offered_ids = select_offered(client_states, train_ids, method.num_offered_states, config.seed)
    offered_states = None
    if len(offered_ids) > 0:
        offered_states = client_states.gather(offered_ids, method.init_client_state(state))
    return TrainedModel(method, task, state, example_spec, config.seed, offered_states)


def restore_server_state(
    run_dir: RunDir,
    record: RunRecord,
    initial_state: ServerState,
    method: Method,
    client_states: ClientStateStore,
) -> ServerState:
    """Return the server's state of the last checkpoint, and restore client states in place.

    What else is in the folder, such as the log of rounds, may be damaged.

    Args:
        run_dir: The folder of the run.
        record: Its record as it was written last.
        initial_state: A server state of the same structure.
        method: The method of the run.
        client_states: Store that the checkpoint's client states are put into.
    """
    out = run_dir.path
    checkpoints = CheckpointManager(out, None, record.checksums.config)
    restored = checkpoints.restore_latest(
        initial_state, client_states, method.init_client_state(initial_state)
    )
    if restored is None:
        raise InputError(f"The run in '{out}' has no checkpoint yet.")
    require(
        not restored.skipped,
        f"The last checkpoint of the run in '{out}' cannot be used: {'; '.join(restored.skipped)}",
    )
    # A run that was killed has no rounds in its record.
    is_last = not record.rounds or restored.rounds_done == len(record.rounds)
    require(
        is_last or record.status == "diverged",
        f"The last checkpoint of the run in '{out}' is missing; put it back.",
    )
    return restored.state
