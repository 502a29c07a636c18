"""Training from Python: `fit` a method, look at its scores, personalize it for an unseen client."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from fedtailor.core.stopwatch import Stopwatch, time_phase
from fedtailor.core.types import Method, Params, ServerState, Tree
from fedtailor.data.dataset import FederatedDataset
from fedtailor.engines import factory
from fedtailor.engines.base import Engine
from fedtailor.engines.compile_policy import CompileMode
from fedtailor.engines.context import EngineContext
from fedtailor.errors import InputError, is_number, require, summarize_error
from fedtailor.evaluation.client_statistics import Scores
from fedtailor.evaluation.evaluate import evaluate
from fedtailor.personalization.personal_model import PersonalModel, personalize_model
from fedtailor.training import engine_choice
from fedtailor.training.context import ModelLike, get_cohort_size, prepare_context
from fedtailor.training.loop import Cost, Round, raise_if_diverged, run_rounds
from fedtailor.training.pretraining import PretrainingConfig, check_pretraining, run_pretraining
from fedtailor.training.resources import check_threads, restore_threads
from fedtailor.training.trained_model import TrainedModel


@dataclass(frozen=True)
class FitResult:
    """A method after training, with everything that is needed to train or personalize further."""

    context: EngineContext
    engine: Engine
    state: ServerState  # after the last round
    scores: dict[str, Scores]  # of "participating", "validation" and "unseen" clients
    cost: Cost  # of all rounds
    seconds: dict[str, float]  # of the wall clock, by what they were spent on

    @property
    def params(self) -> Params:
        """Return the parameters of the global model."""
        return self.state.params

    def personalize(self, x: Any, y: Any) -> PersonalModel:
        """Return the model that the method tailors to an unseen client with these examples."""
        model = TrainedModel(
            method=self.context.method,
            task=self.context.task,
            state=self.state,
            example_spec=self.context.data.example_spec,
            seed=self.context.seed,
            offered_states=self._gather_offered_states(),
        )
        return personalize_model(model, x, y)

    def _gather_offered_states(self) -> Tree | None:
        """Return the client states that an unseen client may start from, or None without any."""
        offered_ids = self.context.select_offered_clients()
        if len(offered_ids) == 0:
            return None
        initial = self.context.method.init_client_state(self.state)
        return self.context.client_states.gather(offered_ids, initial)


@restore_threads()
def fit(
    method: str | Method,
    model: ModelLike,
    data: FederatedDataset,
    *,
    rounds: int,
    cohort: int = 10,
    seed: int = 0,
    engine: str = "vectorized",
    device: str = "cpu",
    chunk: int | None = None,
    compile: CompileMode | Literal["auto"] = "auto",
    threads: int | None = None,
    client_state_dir: Path | None = None,
    pretrain: int = 0,
    pretrain_lr: float = 0.1,
    pretrain_batch: int = 20,
    on_round_end: Callable[[Round], None] | None = None,
    **hparams: Any,
) -> FitResult:
    """Train a method and score it on participating, validation and unseen clients.

    Args:
        method: Name in `fedtailor.methods.NAMES`; or a `Method`, with the `Task` that it was built
            on as `model`.
        model: An `nn.Module`, at whose weights training starts; a function that returns one, whose
            initial weights are drawn from `seed`; or a `Task`, for anything but plain
            classification or regression.
        data: Examples of all clients and, for some methods, of the server.
        rounds: Communication rounds.
        cohort: Clients per round.
        seed: Seed of everything that is random.
        engine: "vectorized" or "sequential".
        device: "cpu", "cuda" or "mps".
        chunk: Clients that are stacked at a time; None stacks as many as fit in memory.
        compile: Steps that are compiled: all (True), none (False), or all but those of
            personalization and evaluation ("training"); "auto" is "training" for runs that are long
            enough for it, by counts of their steps and operations.
        threads: Threads of the CPU while this runs; None takes as many as a step has work for, and
            no more than torch has.
        client_state_dir: Folder for client states between rounds; None keeps them in RAM.
        pretrain: Epochs of SGD on the server's data before the first round.
        pretrain_lr: Learning rate of that SGD.
        pretrain_batch: Batch size of that SGD.
        on_round_end: Function to call after every round.
        **hparams: Hyper-parameters of the method, if `method` is a name.

    Returns:
        The trained method with its scores, its cost, and the means to personalize it.
    """
    _check_client_state_dir(client_state_dir)
    is_count = threads is None or (is_number(threads, integer=True) and threads >= 1)
    require(is_count, f"fit: threads must be a whole number of at least 1, got {threads!r}.")
    check_threads(threads)
    require(
        on_round_end is None or callable(on_round_end),
        f"fit: on_round_end must be a function, got {on_round_end!r}.",
    )
    pretraining = PretrainingConfig(pretrain, pretrain_lr, pretrain_batch)
    context = prepare_context(
        method,
        model,
        data,
        rounds=rounds,
        cohort=cohort,
        seed=seed,
        device=device,
        client_state_dir=client_state_dir,
        **hparams,
    )
    check_pretraining(pretraining, data)
    request = engine_choice.ComputeRequest(engine, compile, threads, rounds, cohort)
    chosen_engine = _make_engine(context, request, chunk)
    return train(context, chosen_engine, rounds, cohort, on_round_end, pretraining)


def _make_engine(
    context: EngineContext, request: engine_choice.ComputeRequest, chunk: int | None
) -> Engine:
    """Return the engine that `fit` was asked for, with its steps compiled if they are to be."""
    factory.validate_engine_options(request.engine, chunk)
    choice = engine_choice.choose_compute(request, context)
    torch.set_num_threads(choice.threads)
    engine = factory.make_engine(context, request.engine, chunk, choice.compile)
    if not factory.get_engine_options(engine).compile:
        return engine
    if choice.compile_note:
        sys.stderr.write(f"fedtailor: {choice.compile_note}\n")
    ready_engine, _ = engine_choice.compile_ahead(engine, context.init_server_state(), request)
    return ready_engine


def _check_client_state_dir(path: Any) -> None:
    """Make the folder for client states; raise an `InputError` if that cannot be done."""
    if path is None:
        return
    require(
        isinstance(path, str | Path),
        f"fit: client_state_dir must be the path of a folder, got {path!r}.",
    )
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise InputError(
            f"fit: client_state_dir must be a folder that can be made, but '{path}' cannot "
            f"({summarize_error(error)})."
        ) from None


def train(
    context: EngineContext,
    engine: Engine,
    rounds: int,
    cohort: int,
    on_round_end: Callable[[Round], None] | None = None,
    pretraining: PretrainingConfig | None = None,
) -> FitResult:
    """Train and score a method whose context and engine have been prepared.

    Args:
        context: Method, task, data and client states.
        engine: Engine of this context.
        rounds: Communication rounds.
        cohort: Clients per round; a method that pools the data of all clients always has one.
        on_round_end: Function to call after every round.
        pretraining: Training on the server's data before the first round; None for none.
    """
    stopwatch = Stopwatch()
    with stopwatch.run():
        pretrained_params = None
        if pretraining is not None:
            pretrained_params = run_pretraining(context, pretraining)
        state = context.init_server_state(pretrained_params)
        cost = Cost()
        all_rounds = run_rounds(context, engine, state, get_cohort_size(context, cohort))
        for finished_round in islice(all_rounds, rounds):
            state = finished_round.state
            cost = cost.add(finished_round.cost)
            if on_round_end is not None:
                on_round_end(finished_round)
        raise_if_diverged(context.method.name, state)
        with time_phase("evaluation"):
            scores = evaluate(context, engine, state, ("participating", "validation", "unseen"))
    return FitResult(context, engine, state, scores, cost, stopwatch.read())
