"""Tasks: losses and metrics against textbooks', parameters against autograd, and purity."""

import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, grad_and_value, vmap
from torch.nn import functional as nnf
from torch.utils._pytree import tree_leaves

from agreement import clone, distance
from fedtailor.core.functionalize import seed_initialization
from fedtailor.core.task import Task, classification, multilabel, regression, sequences
from fedtailor.core.types import Batch, Params
from figures import accuracy, f1, log_loss
from scenarios import toy_setting, train

EXAMPLES, PLACES, VOCABULARY, PADDING, UNCOUNTED = 40, 6, 7, (0, 5), (1, 2)
Figures = dict[str, float]
Figured = Callable[[Tensor, Tensor], Figures]


class Words(nn.Module):
    """Logits for each place, from a head that is tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(VOCABULARY, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.mix(self.embed(x))))
        return logits


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def labels(high: int, *shape: int, seed: int = 1) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, high, shape))


def class_figures(outputs: Tensor, y: Tensor) -> Figures:
    probabilities = np.exp(outputs.numpy()) / np.exp(outputs.numpy()).sum(1, keepdims=True)
    return {
        "loss": log_loss(y.tolist(), probabilities),
        "accuracy": accuracy(y.tolist(), probabilities.argmax(1)),
    }


def label_figures(outputs: Tensor, y: Tensor) -> Figures:
    probabilities, truth = 1 / (1 + np.exp(-outputs.numpy())), y.numpy()
    losses = -truth * np.log(probabilities) - (1 - truth) * np.log(1 - probabilities)
    said = (probabilities > 0.5).astype(int)
    return {
        "loss": losses.mean(),
        "f1": f1(truth.ravel(), said.ravel()),
        "accuracy": (said == truth).mean(),
    }


def number_figures(outputs: Tensor, y: Tensor) -> Figures:
    gaps = [
        truth - said
        for truth, said in zip(y.flatten().tolist(), outputs.flatten().tolist(), strict=True)
    ]
    return {
        "loss": np.mean([gap * gap for gap in gaps]),
        "mae": np.mean([abs(gap) for gap in gaps]),
    }


def token_figures(outputs: Tensor, y: Tensor) -> Figures:
    losses, hits = [], []
    for logits, token in zip(
        outputs.reshape(-1, VOCABULARY).tolist(), y.flatten().tolist(), strict=True
    ):
        if token not in PADDING:
            losses.append(math.log(sum(math.exp(logit) for logit in logits)) - logits[token])
        if token not in (*PADDING, *UNCOUNTED):
            hits.append(logits[token] == max(logits))
    return {"loss": float(np.mean(losses)), "accuracy": float(np.mean(hits))}


def built(kind: str) -> tuple[Task, Tensor, Tensor, Figured]:
    """A task with as many examples, and what its figures over some of them are."""
    words, x = labels(VOCABULARY, EXAMPLES, PLACES, seed=2), drawn(EXAMPLES, 5)
    with seed_initialization(3):
        made: dict[str, tuple[Task, Tensor, Tensor, Figured]] = {
            "classes": (classification(nn.Linear(5, 3)), x, labels(3, EXAMPLES), class_figures),
            "labels": (multilabel(nn.Linear(5, 4)), x, labels(2, EXAMPLES, 4), label_figures),
            "number": (regression(nn.Linear(5, 1)), x, drawn(EXAMPLES, seed=4), number_figures),
            "numbers": (regression(nn.Linear(5, 3)), x, drawn(EXAMPLES, 3, seed=4), number_figures),
            "tokens": (
                sequences(Words(), PADDING, UNCOUNTED),
                words,
                words.roll(1, 1),
                token_figures,
            ),
        }
    task, x, y, figures = made[kind]
    return task.to(dtype=torch.float64), x, y, figures


KINDS = ["classes", "labels", "number", "numbers", "tokens"]
MASKS = {
    "all": torch.ones(EXAMPLES),
    "some": (torch.arange(EXAMPLES) % 3 > 0).double(),
    "the last alone": (torch.arange(EXAMPLES) == EXAMPLES - 1).double(),
}


def batch_of(x: Tensor, y: Tensor, mask: Tensor | None = None, key: int = 0) -> Batch:
    mask = torch.ones(len(x)) if mask is None else mask
    return Batch(x, y, mask.to(torch.float64), torch.tensor(key))


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_figures_are_those_over_the_real_examples(kind: str, mask: Tensor) -> None:
    task, x, y, figures = built(kind)
    real = mask.bool()
    wanted = figures(task.compute_outputs(task.params, x[real]), y[real])
    sums = task.compute_metric_sums(task.params, batch_of(x, y, mask))
    assert {name: float(total / weight) for name, (total, weight) in sums.items()} == pytest.approx(
        wanted, abs=1e-12
    )
    assert float(task.loss(task.params, batch_of(x, y, mask))) == pytest.approx(
        wanted["loss"], abs=1e-12
    )
    assert ["loss", *(metric.name for metric in task.metrics)] == list(sums)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_has_no_influence_whatever_it_is(kind: str) -> None:
    task, x, y, _ = built(kind)
    mask = MASKS["some"]
    other_x, other_y = x.clone(), y.clone()
    other_x[mask == 0], other_y[mask == 0] = x[0].flip(0), y[0].flip(0) if y.dim() > 1 else y[1]
    for function in (task.loss, grad(task.loss), task.compute_metric_sums):
        assert (
            distance(
                function(task.params, batch_of(x, y, mask)),
                function(task.params, batch_of(other_x, other_y, mask)),
            )
            == 0
        )
    assert (
        distance(
            task.loss(task.params, batch_of(x, y)),
            task.loss(task.params, batch_of(other_x, other_y)),
        )
        > 0
    )


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "tokens"])
def test_padding_whose_loss_is_not_finite_changes_neither_losses_nor_figures(kind: str) -> None:
    task, x, y, _ = built(kind)
    mask, infinite = MASKS["some"], x.clone()
    infinite[mask == 0] = torch.inf
    assert not task.loss(task.params, batch_of(infinite, y)).isfinite()
    plain, padded = batch_of(x, y, mask), batch_of(infinite, y, mask)
    for function in (task.loss, task.compute_metric_sums):
        assert distance(function(task.params, plain), function(task.params, padded)) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_figures_add_up_over_batches_of_any_size(kind: str) -> None:
    task, x, y, figures = built(kind)
    wanted = figures(task.compute_outputs(task.params, x), y)
    parts = [
        task.compute_metric_sums(task.params, batch_of(x[a:b], y[a:b]))
        for a, b in pairwise((0, 1, 2, 9, 30, EXAMPLES))
    ]
    total = {name: torch.stack([part[name] for part in parts]).sum(0) for name in wanted}
    assert {name: float(pair[0] / pair[1]) for name, pair in total.items()} == pytest.approx(
        wanted, abs=1e-12
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_padding_alone_has_no_loss_and_no_gradient(kind: str) -> None:
    task, x, y, _ = built(kind)
    batch = batch_of(x, y, torch.zeros(EXAMPLES))
    assert float(task.loss(task.params, batch)) == 0.0
    assert all(bool((value == 0).all()) for value in grad(task.loss)(task.params, batch).values())
    assert all(
        bool((pair == 0).all()) for pair in task.compute_metric_sums(task.params, batch).values()
    )


def test_sentences_of_padding_alone_have_no_loss_and_no_gradient() -> None:
    task, x, _, _ = built("tokens")
    batch = batch_of(x, torch.full_like(x, PADDING[1]))
    assert float(task.loss(task.params, batch)) == 0.0
    assert all(bool((value == 0).all()) for value in grad(task.loss)(task.params, batch).values())


def test_padding_may_be_a_token_that_is_not_in_the_vocabulary() -> None:
    task, x, y, _ = built("tokens")
    elsewhere = sequences(Words(), padding=(-1,))
    moved = torch.where(torch.isin(y, torch.tensor(PADDING)), -1, y)
    batches = batch_of(x, y), batch_of(x, moved)
    losses = [
        float(each.loss(task.params, batch))
        for each, batch in zip((task, elsewhere), batches, strict=True)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)


def test_a_loss_is_the_gradient_of_the_plain_model() -> None:
    task, x, y, _ = built("classes")
    model = nn.Linear(5, 3).double()
    model.load_state_dict(task.params)
    nnf.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    assert (
        distance(
            grad(task.loss)(task.params, batch_of(x, y)),
            {n: p.grad for n, p in model.named_parameters()},
        )
        < 1e-12
    )


def stacked(task: Task, clients: int) -> Params:
    return {
        name: value + drawn(clients, *value.shape, seed=8) for name, value in task.params.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_stacked_clients_have_what_each_has_alone(kind: str) -> None:
    task, x, y, _ = built(kind)
    params, mask = stacked(task, 4), MASKS["some"].reshape(4, 10)
    batches = Batch(
        x.reshape(4, 10, *x.shape[1:]), y.reshape(4, 10, *y.shape[1:]), mask, torch.arange(4)
    )
    for function in (task.loss, grad(task.loss), task.compute_metric_sums):
        together = vmap(function)(params, batches)
        for client in range(4):
            own, place = (
                {n: v[client] for n, v in params.items()},
                Batch(*(value[client] for value in batches)),
            )
            mine = torch.utils._pytree.tree_map(lambda leaf, at=client: leaf[at], together)
            assert distance(mine, function(own, place)) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_functions_are_pure_and_pickle(kind: str) -> None:
    task, x, y, _ = built(kind)
    batch, before = batch_of(x, y, MASKS["some"]), clone((task.params, task.constants, x, y))
    copied = pickle.loads(pickle.dumps(task))
    for name in ("loss", "compute_metric_sums"):
        results = [getattr(each, name)(each.params, batch) for each in (task, task, copied)]
        assert distance(results[0], results[1]) == distance(results[0], results[2]) == 0
    grad(task.loss)(task.params, batch)
    assert distance(before, (task.params, task.constants, x, y)) == 0


class Parts(nn.Module):
    """A frozen layer, two buffers of which one is not saved, an integer buffer, and a head tied to
    the first layer.
    """

    scale: Tensor
    shift: Tensor
    order: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.frozen, self.drop = (
            nn.Linear(5, 4, bias=False),
            nn.Linear(4, 4),
            nn.Dropout(0.5),
        )
        self.head = nn.Linear(5, 4, bias=False)
        self.head.weight = self.embed.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 4))
        self.register_buffer("shift", torch.linspace(-1, 1, 5), persistent=False)
        self.register_buffer("order", torch.tensor([4, 2, 0, 1, 3]))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(self.frozen(self.embed(x[:, self.order]) * self.scale))
        outputs: Tensor = torch.tanh(hidden) @ self.head.weight + self.shift
        return outputs


def parts() -> Parts:
    with seed_initialization(6):
        return Parts()


def test_frozen_parameters_and_buffers_are_constants_and_tied_ones_are_one() -> None:
    model = parts()
    task = classification(model)
    assert list(task.params) == ["embed.weight"]
    assert set(task.constants) == {"frozen.weight", "frozen.bias", "scale", "shift", "order"}
    x, y = drawn(6, 5).float(), labels(5, 6)
    assert torch.equal(task.compute_outputs(task.params, x), model.eval()(x))
    nnf.cross_entropy(model.eval()(x), y).backward()  # type: ignore[no-untyped-call]
    steady = replace(task, train_module=task.eval_module)
    got = grad(steady.loss)(task.params, batch_of(x, y)._replace(mask=torch.ones(6)))
    assert distance(got["embed.weight"], model.embed.weight.grad) < 1e-6


@pytest.mark.parametrize("name", ["frozen.weight", "scale", "shift"])
def test_every_constant_is_used(name: str) -> None:
    task, x = classification(parts()), drawn(6, 5).float()
    other = replace(task, constants=task.constants | {name: task.constants[name] + 0.1})
    assert (
        distance(task.compute_outputs(task.params, x), other.compute_outputs(task.params, x)) > 1e-3
    )


def test_training_changes_neither_constants_nor_the_first_parameters() -> None:
    task = classification(parts()).to(dtype=torch.float64)
    before = clone((task.params, task.constants))
    state, _ = train(toy_setting("fedavg", task=task), rounds=2)
    assert distance((task.params, task.constants), before) == 0
    assert list(state.params) == ["embed.weight"]
    assert distance(state.params, task.params) > 1e-3


def test_precision_changes_floating_tensors_alone() -> None:
    task = classification(parts())
    double = task.to(dtype=torch.float64)
    assert (task.dtype, double.dtype) == (torch.float32, torch.float64)
    kinds = {name: value.dtype for name, value in double.constants.items()}
    assert kinds.pop("order") == torch.int64
    assert set(kinds.values()) == {torch.float64}
    assert distance(task.params, double.params) == distance(task.constants, double.constants) == 0
    x = drawn(6, 5)
    assert (
        distance(
            task.compute_outputs(task.params, x.float()), double.compute_outputs(double.params, x)
        )
        < 1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_module_gives_the_tasks_outputs_and_is_the_users_kind(dtype: torch.dtype) -> None:
    task, x = classification(parts()).to(dtype=dtype), drawn(6, 5).to(dtype)
    params = {name: value + 0.25 for name, value in task.params.items()}
    module = task.to_module(params)
    assert isinstance(module, Parts)
    assert torch.equal(module(x), task.compute_outputs(params, x))
    assert module.head.weight is module.embed.weight
    assert type(module.drop) is nn.Dropout
    assert not module.training
    assert [p.requires_grad for p in module.parameters()] == [True, False, False]
    before = clone((params, task.constants))
    with torch.no_grad():
        module.embed.weight.zero_()
        module.scale.zero_()
    assert distance(before, (params, task.constants)) == 0


@pytest.mark.parametrize("change", [{"nowhere": torch.ones(1)}, {"frozen.nothing": torch.ones(1)}])
def test_a_module_takes_its_own_parameters_alone(change: Params) -> None:
    task = classification(parts())
    with pytest.raises(
        ValueError,
        match=f"^Task: parameters must be the model's own, but .'{next(iter(change))}'. are",
    ):
        task.to_module(task.params | change)
    with pytest.raises(ValueError, match=r"but \['embed.weight'\] are missing or unknown"):
        task.to_module({})


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(x)[0].mean(1))
        return logits


def test_a_recurrent_layer_uses_the_parameters_that_it_is_given() -> None:
    with seed_initialization(1):
        model = Recurrent().double()
    task, x, y = classification(model), drawn(6, 4, 5), labels(3, 6)
    params = {name: value + 0.1 for name, value in task.params.items()}
    model.load_state_dict(params)
    with torch.no_grad():
        assert distance(task.compute_outputs(params, x), model(x)) < 1e-12
        assert distance(task.to_module(params)(x), model(x)) < 1e-12
    nnf.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    gradients = grad(task.loss)(params, batch_of(x, y))
    assert distance(gradients, {name: p.grad for name, p in model.named_parameters()}) < 1e-12


def test_the_users_model_is_left_alone_and_leaves_the_task_alone() -> None:
    model: Any = parts().eval()
    before, dropout = clone(model.state_dict()), model.drop
    task, x, y = classification(model), drawn(6, 5).float(), labels(5, 6)
    first = task.loss(task.params, batch_of(x, y)._replace(mask=torch.ones(6)))
    assert model.drop is dropout
    assert not model.training
    assert not dropout.training
    assert distance(before, model.state_dict()) == 0
    assert all(p.grad is None for p in model.parameters())
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    assert torch.equal(first, task.loss(task.params, batch_of(x, y)._replace(mask=torch.ones(6))))


def test_a_model_may_calculate_in_short_floats_while_everything_else_keeps_its_type() -> None:
    task = classification(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)))
    draws = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 5, generator=draws), torch.randint(0, 3, (12,), generator=draws)
    batch = Batch(x, y, torch.ones(12), torch.tensor(0))
    short = task.with_compute_dtype(torch.bfloat16)
    found, exact = (grad_and_value(each.loss)(task.params, batch) for each in (short, task))
    assert {leaf.dtype for leaf in tree_leaves(found)} == {torch.float32}
    gap = max(
        float((a - b).abs().max())
        for a, b in zip(tree_leaves(found), tree_leaves(exact), strict=True)
    )
    assert 0 < gap < 0.05
    by_hand = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).bfloat16()
    by_hand.load_state_dict(task.params)  # which it rounds
    expected = nn.functional.cross_entropy(by_hand(batch.x.bfloat16()).float(), batch.y).detach()
    assert float((found[1] - expected).abs()) < 1e-6
    assert short.compute_outputs(task.params, batch.x).dtype == torch.float32
    assert short.compute_features(task.params, batch).dtype == torch.float32
