"""Models tried out before anything slow begins: what is no function, or does not fit the examples,
is refused.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from fedtailor.core.functionalize import _is_random_op
from fedtailor.core.task import (
    Task,
    classification,
    multilabel,
    regression,
    sequences,
    validate_task,
)
from fedtailor.errors import InputError
from pure import Net, refused_in_one_sentence


class Says(nn.Module):
    """A linear model that also does something else on its way."""

    count: Tensor
    table: Tensor

    def __init__(self, does: Callable[["Says", Tensor], Tensor]) -> None:
        super().__init__()
        self.head, self.does, self.calls = nn.Linear(5, 3), does, 0
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("table", torch.tensor([0.0, -torch.inf, torch.nan]))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.does(self, x))
        return logits


def drops(self: Says, x: Tensor) -> Tensor:
    return nnf.dropout(x, 0.5, self.training)


def always_drops(self: Says, x: Tensor) -> Tensor:
    return nnf.dropout(x, 0.5)


def draws(self: Says, x: Tensor) -> Tensor:
    return x + torch.randn(5)


def draws_when_scored(self: Says, x: Tensor) -> Tensor:
    return x if self.training else x + torch.rand_like(x)


def draws_with_numpy(self: Says, x: Tensor) -> Tensor:
    return x + float(np.random.default_rng().normal())


def attends(self: Says, x: Tensor) -> Tensor:
    return nnf.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], dropout_p=0.2)[:, 0]


def counts_in_place(self: Says, x: Tensor) -> Tensor:
    self.count += 1
    return x


def counts_anew(self: Says, x: Tensor) -> Tensor:
    self.count = 0.9 * self.count + x.mean()
    return x


def counts_when_scored(self: Says, x: Tensor) -> Tensor:
    self.count += float(not self.training)
    return x


def changes_a_weight(self: Says, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.head.weight.mul_(0.5)
    return x


def remembers(self: Says, x: Tensor) -> Tensor:
    self.calls += 1
    return x * self.calls


def fails_without_a_word(self: Says, x: Tensor) -> Tensor:
    raise AssertionError


DOES: list[tuple[Callable[[Says, Tensor], Tensor], str]] = [
    (drops, r"draws random numbers by itself \(aten.*use torch\.nn\.Dropout layers"),
    (always_drops, "draws random numbers by itself"),
    (draws, r"draws random numbers by itself \(aten\.randn"),
    (draws_when_scored, "draws random numbers by itself"),
    (draws_with_numpy, "gives other outputs for the same inputs"),
    (attends, "draws random numbers by itself"),
    (counts_in_place, "changes its buffer 'count' when it is run"),
    (counts_anew, "changes its buffer 'count' when it is run"),
    (counts_when_scored, "changes its buffer 'count' when it is run"),
    (changes_a_weight, r"changes its parameter 'head\.weight' when it is run"),
    (remembers, "gives other outputs for the same inputs"),
    (fails_without_a_word, "failed with 'AssertionError'; check the model's input shape"),
]

X, Y = torch.ones(2, 5), torch.tensor([0, 2])


@pytest.mark.parametrize(("does", "sentence"), DOES, ids=[does.__name__ for does, _ in DOES])
def test_probe_refuses_models_that_are_not_functions(does: Any, sentence: str) -> None:
    task = classification(Says(does))
    before = {name: value.clone() for name, value in (task.constants | task.params).items()}
    with pytest.raises(InputError, match=sentence) as caught:
        validate_task(task, X, Y)
    assert refused_in_one_sentence(caught)
    for name, value in (task.constants | task.params).items():
        assert torch.equal(value.nan_to_num(), before[name].nan_to_num())


class Sequence(nn.Module):
    """Some layer over a sequence of vectors, then a head."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        three = isinstance(self.layer, nn.MultiheadAttention)
        hidden = self.layer(x, x, x, need_weights=False) if three else self.layer(x)
        logits: Tensor = self.head((hidden if isinstance(hidden, Tensor) else hidden[0]).mean(1))
        return logits


LAYERS: dict[str, Callable[[float], nn.Module]] = {
    "lstm": lambda p: nn.LSTM(8, 8, 2, dropout=p, batch_first=True),
    "gru": lambda p: nn.GRU(8, 8, 2, dropout=p, batch_first=True),
    "attention": lambda p: nn.MultiheadAttention(8, 2, dropout=p, batch_first=True),
    "transformer": lambda p: nn.TransformerEncoderLayer(8, 2, 16, dropout=p, batch_first=True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_probe_refuses_dropout_inside_layers_and_accepts_the_layers(name: str) -> None:
    x = torch.linspace(-1, 1, 2 * 4 * 8).reshape(2, 4, 8)
    task = classification(Sequence(LAYERS[name](0.0)))
    assert torch.allclose(
        validate_task(task, x, Y), task.compute_outputs(task.params, x), atol=1e-6
    )
    with pytest.raises(
        InputError, match="set the dropout of recurrent and attention layers to 0"
    ) as caught:
        validate_task(classification(Sequence(LAYERS[name](0.3))), x, Y)
    assert refused_in_one_sentence(caught)


def test_attention_draws_when_it_drops_something() -> None:
    flash, q = torch.ops.aten._scaled_dot_product_flash_attention.default, torch.ones(1, 1, 2, 8)
    assert [_is_random_op(flash, (q, q, q, p), {}) for p in (0.0, 0.2)] == [False, True]
    assert [_is_random_op(flash, (q, q, q), given) for given in ({}, {"dropout_p": 0.2})] == [
        False,
        True,
    ]
    assert _is_random_op(torch.ops.aten.bernoulli_.float, (q, 0.0), {})


def test_probe_accepts_models_with_keyed_dropout_and_strange_buffers() -> None:
    for model in (
        Net(lambda: nn.Dropout(0.5)),
        Says(lambda self, x: x * 2),
        Net(lambda: nn.GroupNorm(2, 6)),
    ):
        task = classification(model)
        state = torch.random.get_rng_state()
        assert torch.equal(validate_task(task, X, Y), task.compute_outputs(task.params, X))
        assert torch.equal(state, torch.random.get_rng_state())


UNFIT: list[tuple[Callable[[nn.Module], Task], Tensor, Tensor, str]] = [
    (
        classification,
        torch.ones(2, 4),
        Y,
        r"x \(2, 4\) torch\.float32 and y \(2,\) torch\.int64, failed with 'mat1 and mat2",
    ),
    (classification, X.double(), Y, "failed with 'mat1 and mat2 must have the same dtype"),
    (classification, X.long(), Y, "failed with "),
    (
        classification,
        X,
        Y[:, None],
        r"outputs of shape \[2, 3\] needs y of shape \[2\], got \[2, 1\]",
    ),
    (classification, X, torch.ones(2, 3) / 3, r"needs y of shape \[2\], got \[2, 3\]"),
    (classification, X, Y.double(), "failed with "),
    (classification, X, Y + 2, "has outputs for 3 classes, but there is a label 4"),
    (
        multilabel,
        X,
        Y,
        r"multilabel with outputs of shape \[2, 3\] needs y of shape \[2, 3\], got \[2\]",
    ),
    (multilabel, X, torch.ones(2, 1), r"needs y of shape \[2, 3\], got \[2, 1\]"),
    (
        regression,
        X,
        torch.ones(2),
        "failed with .*check the model's input shape and the task .regression",
    ),
    (sequences, X, Y, r"sequences needs outputs of 3 dimensions, got outputs of shape \[2, 3\]"),
    (
        sequences,
        torch.ones(2, 6, 5),
        torch.zeros(2, 3, dtype=torch.int64),
        r"needs y of shape \[2, 6\], got \[2, 3\]",
    ),
]


@pytest.mark.parametrize(("kind", "x", "y", "sentence"), UNFIT)
def test_probe_refuses_examples_that_do_not_fit(
    kind: Any, x: Tensor, y: Tensor, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        validate_task(kind(nn.Linear(5, 3)), x, y)
    assert refused_in_one_sentence(caught)
