"""Cutting a model at its last layer: the head on the features is the model; what ends otherwise is
refused.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from agreement import distance
from examples import batch_of, draw
from fedtailor import fit, prng
from fedtailor.core.functionalize import seed_initialization
from fedtailor.core.task import Task, classification, regression, sequences
from fedtailor.core.types import Batch, ServerState
from fedtailor.errors import InputError
from fedtailor.methods import afml
from fedtailor.models import mlp
from scenarios import Net, toy_data

HEAD = ("head.weight", "head.bias")


class Chars(nn.Module):
    """Scores at each place, from a recurrence that is written out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.drop, self.head = (
            nn.Embedding(7, 4),
            nn.Linear(9, 5),
            nn.Dropout(0.3),
            nn.Linear(5, 7),
        )

    def forward(self, x: Tensor) -> Tensor:
        state, states = torch.zeros(len(x), 5, dtype=self.head.weight.dtype), []
        for place in self.embed(x).unbind(1):
            state = torch.tanh(self.cell(torch.cat([place, state], 1)))
            states.append(state)
        scores: Tensor = self.head(self.drop(torch.stack(states, 1)))
        return scores


class Frozen(Net):
    """A head of which the bias alone is learned, and which is registered before a layer that has no
    parameters.
    """

    def __init__(self) -> None:
        super().__init__(0.5)
        self.head.weight.requires_grad_(False)
        self.after = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.after(super().forward(x))
        return outputs


def images(seed: int = 0) -> tuple[Tensor, Tensor]:
    return draw(6, 1, 8, 8, seed=seed), torch.arange(6) % 3


def cut_models() -> dict[str, tuple[Task, Batch, tuple[str, ...]]]:
    conv = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Dropout2d(0.4),
        nn.Flatten(),
        nn.Linear(144, 3),
    )
    tokens = torch.arange(30).reshape(6, 5) % 7
    x, y = draw(6, 5), torch.arange(6) % 3
    with seed_initialization(2):
        made = {
            "mlp": (classification(mlp(64, (12,), 3)), batch_of(*images()), ("3.weight", "3.bias")),
            "dropout": (classification(Net(0.5)), batch_of(x, y), HEAD),
            "convolution": (classification(conv), batch_of(*images()), ("5.weight", "5.bias")),
            "sequences": (sequences(Chars()), batch_of(tokens, tokens.roll(1, 1)), HEAD),
            "frozen": (classification(Frozen()), batch_of(x, y), ("head.bias",)),
            "no bias": (
                regression(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 1, bias=False))),
                batch_of(x, draw(6)),
                ("1.weight",),
            ),
            "alone": (classification(nn.Linear(5, 3)), batch_of(x, y), ("weight", "bias")),
        }
    return {
        name: (task.to(dtype=torch.float64), batch, last)
        for name, (task, batch, last) in made.items()
    }


@pytest.mark.parametrize("name", cut_models())
def test_the_head_on_the_features_is_the_model(name: str) -> None:
    task, batch, last = cut_models()[name]
    params = {key: value + 0.1 * draw(*value.shape, seed=4) for key, value in task.params.items()}
    assert task.head_param_names == last
    for key in (1, 2):
        keyed_batch = batch._replace(key=prng.key(key), mask=(torch.arange(6) < 4).double())
        features = task.compute_features(params, keyed_batch)
        assert features.shape[-1] == task.cut.feature_dim
        found = task.mean_loss(
            task.apply_head({each: params[each] for each in last}, features), keyed_batch
        )
        assert distance(found, task.loss(params, keyed_batch)) < 1e-14
    calm = replace(task, train_module=task.eval_module)
    assert (
        distance(
            calm.apply_head(params, calm.compute_features(params, batch)),
            calm.compute_outputs(params, batch.x),
        )
        < 1e-14
    )


@pytest.mark.parametrize("name", cut_models())
def test_any_model_that_ends_in_a_linear_layer_can_be_trained(name: str) -> None:
    task, batch, _ = cut_models()[name]
    method = afml.build(task, afml.HParams(alpha=0.01, sigma=0.1))
    state = ServerState(task.params, torch.tensor(0), prng.key(1), method.init(task.params))
    sent, step = method.broadcast(state), method.client.phases[0].step
    carry = step(sent, method.client.init(sent, ()), (batch, batch._replace(key=prng.key(5))))
    change = method.client.finalize(sent, carry).update
    after = method.server.finalize(state, change)
    assert list(change) == list(sent.sample) == [*task.params, *afml.LATENT]
    assert all(float(value.abs().max()) > 0 for value in change.values())
    assert after.params.keys() == task.params.keys()
    assert {key: value.dtype for key, value in after.params.items()} == dict.fromkeys(
        task.params, torch.float64
    )


class Ending(nn.Module):
    """A linear layer, and something done to what it gives."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.body, self.head, self.what = nn.Linear(5, 4), nn.Linear(4, 3), what

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(x))
        ends = {
            "log_softmax": lambda: torch.log_softmax(scores, 1),
            "squeeze": lambda: scores.squeeze(-1),
            "in place": lambda: scores.add_(1),
            "sum": lambda: scores + 1,
            "part": lambda: scores[:, [2, 1, 0]],
            "twice": lambda: self.head(scores[:, :1].expand(-1, 4)),
            "other": lambda: self.body(x)[:, :3],
        }
        found: Tensor = ends[self.what]()  # type: ignore[no-untyped-call]
        return found


@pytest.mark.parametrize(
    "what", ["log_softmax", "squeeze", "in place", "sum", "part", "twice", "other"]
)
def test_a_model_that_does_not_return_what_its_last_layer_gives_is_refused(what: str) -> None:
    task, data = classification(Ending(what)).to(dtype=torch.float64), toy_data()
    with pytest.raises(InputError) as caught:
        fit(afml.build(task, afml.HParams()), task, data, rounds=1, cohort=2)
    wanted = (
        "Task: to be cut at its last layer 'head', the model must return what this gives, as it is."
    )
    assert str(caught.value) == wanted


def test_a_model_that_does_not_end_in_a_linear_layer_is_refused() -> None:
    task = classification(nn.Sequential(nn.Linear(5, 4), nn.GroupNorm(1, 4)))
    assert task.head_param_names == ("1.weight", "1.bias")
    with pytest.raises(InputError) as caught:
        afml.build(task, afml.HParams())
    assert (
        str(caught.value)
        == "Task: to be cut, the model must end in a torch.nn.Linear, but its last layer is a "
        "GroupNorm."
    )


def test_a_last_layer_that_is_used_elsewhere_too_is_refused() -> None:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
    model[1].weight = model[0].weight
    with pytest.raises(InputError, match=r"for itself, but 0.weight and 1.weight are one\.$"):
        _ = sequences(model).head_param_names
