"""Train from Python: `fit` a method on data, look at scores, personalize the model for an unseen client."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from fedtailor.core.types import Method, Params, ServerState
from fedtailor.data.dataset import FederatedDataset
from fedtailor.engines import factory
from fedtailor.engines.base import Engine
from fedtailor.engines.context import EngineContext
from fedtailor.evaluation.client_statistics import Scores
from fedtailor.evaluation.evaluate import evaluate
from fedtailor.personalization.personal_model import PersonalModel, personalize_model
from fedtailor.training.loop import Cost, Round, raise_if_diverged, run_rounds
from fedtailor.training.prepare import ModelLike, get_cohort_size, prepare_context
from fedtailor.training.pretraining import PretrainingConfig, check_pretraining, run_pretraining


@dataclass(frozen=True)
class FitResult:
    """A method after training."""

    context: EngineContext
    engine: Engine
    state: ServerState
    scores: dict[str, Scores]  # of "participating", "validation" and "unseen" clients
    cost: Cost

    @property
    def params(self) -> Params:
        """The global model."""
        return self.state.params

    def personalize(self, x: Any, y: Any) -> PersonalModel:
        """Tailors the model to a person never seen."""
        context, offered_ids = self.context, self.context.select_offered_clients()
        initial = context.method.init_client_state(self.state)
        offered_states = (
            context.client_states.gather(offered_ids, initial)
            if context.method.num_offered_states and len(offered_ids)
            else None
        )
        return personalize_model(
            context.method,
            context.task,
            self.state,
            context.data.example_spec,
            context.seed,
            x,
            y,
            offered_states,
        )


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
    compile: factory.CompileMode = False,
    client_state_dir: Path | None = None,
    pretrain: int = 0,
    pretrain_lr: float = 0.1,
    pretrain_batch: int = 20,
    on_round_end: Callable[[Round], None] | None = None,
    **hparams: Any,
) -> FitResult:
    """Trains a method and scores it on participating and unseen clients.

    method    a name in `fedtailor.methods.NAMES`, with hyper-parameters as further keywords; or a `Method`, with the
              `Task` that it was built on as the model
    model     an `nn.Module` (training starts at its weights), a function that makes one (its first weights are drawn
              from the seed), or a `Task`, for anything but plain classification or regression
    cohort    clients a round
    engine    "vectorized" or "sequential"
    device    cpu, cuda or mps
    chunk     how many clients are stacked at a time; None: as many as fit
    compile   whether steps are compiled: True, False, or "training" for all but personalizing and scoring
    client_state_dir
              a folder for what clients keep between rounds; None: they keep it in RAM
    pretrain  epochs of SGD on the server's data before the first round, at rate pretrain_lr, pretrain_batch at a time
    on_round_end
              called after every round
    """
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
    return train(
        context,
        factory.make_engine(context, engine, chunk, compile),
        rounds,
        cohort,
        on_round_end,
        pretraining,
    )


def train(
    context: EngineContext,
    engine: Engine,
    rounds: int,
    cohort: int,
    on_round_end: Callable[[Round], None] | None = None,
    pretraining: PretrainingConfig | None = None,
) -> FitResult:
    """Trains what has been prepared, and scores it."""
    state, cost = (
        context.init_server_state(run_pretraining(context, pretraining) if pretraining else None),
        Cost(),
    )
    for finished_round in islice(
        run_rounds(context, engine, state, get_cohort_size(context, cohort)), rounds
    ):
        state, cost = finished_round.state, cost.add(finished_round.cost)
        if on_round_end is not None:
            on_round_end(finished_round)
    raise_if_diverged(context.method.name, state)
    scores = evaluate(context, engine, state, ("participating", "validation", "unseen"))
    return FitResult(context, engine, state, scores, cost)
