"""What a run has trained, as of its last checkpoint, loaded without its data."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedtailor import methods, prng
from fedtailor.core.task import Task
from fedtailor.core.types import Method, ServerState, Tree
from fedtailor.data.dataset import ExampleSpec
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.engines.scoring import select_offered
from fedtailor.errors import InputError, require
from fedtailor.prng.streams import Stream
from fedtailor.training import from_config
from fedtailor.training.checkpoint import CheckpointManager
from fedtailor.training.config import RunConfig
from fedtailor.training.run_dir import RunDir


class TrainedRun(NamedTuple):
    """The result of a run, without its data."""

    config: RunConfig
    example_spec: ExampleSpec
    task: Task
    method: Method
    state: ServerState
    offered_states: Tree | None  # stacked client states that an unseen client may start from


def load_trained_run(out: Path) -> TrainedRun:
    """Load the model of a run as of its last checkpoint, without loading its data."""
    run_dir = RunDir(out)
    config = run_dir.read_config()
    record = run_dir.read_record()
    data_summary = record.data
    example_spec = data_summary.example_spec
    task = from_config.build_task(config, example_spec, out)
    method = methods.build(config.method, task, **record.hparams)
    initial_state = ServerState(
        task.params,
        torch.zeros((), dtype=torch.int64),
        prng.key(config.seed, Stream.SERVER),
        method.init(task.params),
    )
    client_states = ClientStateStore(len(data_summary.clients))
    state = restore_server_state(out, initial_state, method, client_states)
    train_ids = np.array(data_summary.groups["train"])
    offered_ids = select_offered(client_states, train_ids, method.num_offered_states, config.seed)
    offered_states = None
    if method.num_offered_states and len(offered_ids) > 0:
        offered_states = client_states.gather(offered_ids, method.init_client_state(state))
    return TrainedRun(config, example_spec, task, method, state, offered_states)


def restore_server_state(
    out: Path, initial_state: ServerState, method: Method, client_states: ClientStateStore
) -> ServerState:
    """Return the server's state of the last checkpoint, and restore client states in place.

    Args:
        out: The folder of the run.
        initial_state: A server state of the same structure.
        method: The method of the run.
        client_states: Where the checkpoint's client states go.
    """
    restored = CheckpointManager(out).restore_latest(
        initial_state, client_states, method.init_client_state(initial_state)
    )
    if restored is None:
        raise InputError(f"The run in '{out}' has no checkpoint yet.")
    require(
        not restored.skipped,
        f"The last checkpoint of the run in '{out}' cannot be used: {'; '.join(restored.skipped)}",
    )
    return restored.state
