"""The client states that an unseen client may start from, and the choice of the best of them."""

import numpy as np
import torch

from fedtailor import prng
from fedtailor.core import trees
from fedtailor.core.task import Task
from fedtailor.core.types import Method, Tree
from fedtailor.engines.base import ClientWork
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.engines.scoring import build_scoring_routine, compute_mean_loss
from fedtailor.engines.single_client import run_single_client
from fedtailor.prng.streams import Stream


def select_offered(
    client_states: ClientStateStore, client_ids: np.ndarray, num_offered: int, seed: int
) -> np.ndarray:
    """Return the clients whose states unseen clients may try, in the order of `client_ids`.

    They are all that have a state, or a random sample that depends on the seed and on their number.

    Args:
        client_states: Which clients have a state.
        client_ids: Clients to choose from.
        num_offered: Maximum number of clients.
        seed: Seed of the run.
    """
    if num_offered == 0:
        return np.array([], dtype=np.int64)
    is_initialized = client_states.initialized.numpy()[client_ids]
    initialized_ids: np.ndarray = client_ids[is_initialized]
    if len(initialized_ids) <= num_offered:
        return initialized_ids
    key = prng.key(seed, Stream.OFFERED_STATES)
    positions = prng.choice(key, len(initialized_ids), num_offered).sort().values
    return np.asarray(initialized_ids[positions.numpy()])


def choose_best_state(
    method: Method, task: Task, broadcast: Tree, offered_states: Tree, work: ClientWork
) -> Tree:
    """Return the state whose personalized model has the lowest loss on what the client adapts on.

    Args:
        method: Its `personalize` is run for each state.
        task: Model and loss.
        broadcast: The method's broadcast to clients.
        offered_states: Stacked states, [states, ...].
        work: The client, with a key that is the same for all states.
    """
    scoring = build_scoring_routine(task, "adapt")
    losses = []
    for index in range(len(trees.leaves(offered_states)[0])):
        state = trees.take_row(offered_states, index)
        params = run_single_client(method.personalize, broadcast, state, work)
        sums = run_single_client(scoring, (), params, work)
        losses.append(compute_mean_loss(sums))
    best = int(torch.stack(losses).argmin())
    return trees.take_row(offered_states, best)
