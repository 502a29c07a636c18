"""Models made pure: dropout by key, what cannot be pure refused in one sentence, first weights from
a seed.
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fedtailor import prng
from fedtailor.core.functionalize import KeyedDropout, seed_initialization, with_keyed_dropout
from fedtailor.core.task import Task, classification, multilabel, regression, sequences
from fedtailor.core.types import Batch
from fedtailor.errors import InputError
from pure import Net, refused_in_one_sentence


class Dropped(nn.Module):
    """Ones times a parameter of ones, through dropout; the loss below reads the masks off its
    outputs.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.one, self.layers = nn.Parameter(torch.ones(())), nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([layer(self.one * x) for layer in self.layers], 1)


def masks(model: nn.Module, key: int | Tensor, *shape: int) -> Tensor:
    """What each layer of a model does to ones in training: [examples, layers, ...]."""
    task = classification(model)
    seen: list[Tensor] = []
    watch = task.train_module.register_forward_hook(
        lambda module, given, outputs: seen.append(outputs)
    )
    x, y = torch.ones(shape), torch.zeros(shape[0], *shape[1:], dtype=torch.int64)
    task.loss(task.params, Batch(x, y, torch.ones(shape[0]), torch.as_tensor(key)))
    watch.remove()
    return seen[0]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_share_and_the_mean_and_depends_on_the_key_alone(p: float) -> None:
    model = Dropped(nn.Dropout(p))
    mask = masks(model, 3, 40, 500)
    share = prng.keep_prob(p)
    assert set(mask.flatten().tolist()) == {0.0, torch.tensor(1 / share).item()}
    assert (
        abs(float((mask > 0).double().mean()) - share)
        < 5 * (share * (1 - share) / mask.numel()) ** 0.5
    )
    assert torch.equal(mask, masks(Dropped(nn.Dropout(p)), 3, 40, 500))
    assert 0 < float((mask != masks(model, 4, 40, 500)).double().mean()) < 1


CHANNELS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Dropout1d(0.5), (8, 30, 6)),
    (nn.Dropout2d(0.5), (8, 30, 3, 4)),
    (nn.Dropout3d(0.5), (8, 30, 2, 3, 2)),
]


@pytest.mark.parametrize(("layer", "shape"), CHANNELS, ids=["1d", "2d", "3d"])
def test_channel_dropout_drops_whole_channels(layer: nn.Module, shape: tuple[int, ...]) -> None:
    mask = masks(Dropped(layer), 3, *shape)[:, 0].flatten(2)
    assert torch.equal(mask, mask[..., :1].expand_as(mask))
    kept = float((mask[..., 0] > 0).double().mean())
    assert abs(kept - 0.5) < 5 * 0.5 / 240**0.5
    assert set(mask.flatten().tolist()) == {0.0, 2.0}
    plain = masks(Dropped(nn.Dropout(0.5)), 3, *shape)[:, 0].flatten(2)
    assert not torch.equal(plain, plain[..., :1].expand_as(plain))


def test_every_layer_and_every_use_of_a_layer_draws_its_own_mask() -> None:
    shared = nn.Dropout(0.5)
    mask = masks(
        Dropped(shared, shared, nn.Sequential(nn.Dropout(0.5)), nn.Dropout2d(0.5), nn.Dropout(0.0)),
        3,
        6,
        50,
    )
    assert torch.equal(mask[:, 4], torch.ones(6, 50))
    for one in range(4):
        for other in range(one):
            assert not torch.equal(mask[:, one], mask[:, other])


class Twice(nn.Module):
    """One dropout layer, under two names, used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.drop = nn.Parameter(torch.ones(())), nn.Dropout(0.5)
        self.same = self.drop

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([drop(self.one * x) for drop in (self.drop, self.drop, self.same)], 1)


def test_a_layer_used_again_or_under_another_name_draws_again() -> None:
    mask = masks(Twice(), 3, 6, 50)
    assert all(not torch.equal(mask[:, a], mask[:, b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    assert torch.equal(mask, masks(Twice(), 3, 6, 50))
    assert not any(
        type(module) is nn.Dropout for module in classification(Twice()).train_module.modules()
    )


def test_uses_of_a_layer_do_not_add_up_from_call_to_call() -> None:
    task = classification(Twice())
    batch = Batch(
        torch.ones(4, 6), torch.zeros(4, 6, dtype=torch.int64), torch.ones(4), torch.tensor(5)
    )
    first = task.loss(task.params, batch)
    with pytest.raises(RuntimeError):
        task.loss(task.params, batch._replace(y=torch.zeros(4, 5, dtype=torch.int64)))
    assert torch.equal(first, task.loss(task.params, batch))
    assert not torch.equal(first, task.loss(task.params, batch._replace(key=torch.tensor(6))))


def batches(clients: int) -> Batch:
    draws = np.random.default_rng(0)
    x, y = (
        torch.from_numpy(draws.normal(size=(clients, 7, 5))),
        torch.from_numpy(draws.integers(0, 3, (clients, 7))),
    )
    return Batch(x, y, torch.ones(clients, 7, dtype=torch.float64), torch.arange(clients) + 100)


def test_dropout_is_the_same_one_by_one_and_stacked() -> None:
    task, every = classification(Net(lambda: nn.Dropout(0.4))).to(dtype=torch.float64), batches(5)
    together = vmap(grad(task.loss), (None, 0))(task.params, every)
    for client in range(5):
        alone = grad(task.loss)(task.params, Batch(*(value[client] for value in every)))
        assert all(
            torch.allclose(together[name][client], alone[name], rtol=0, atol=1e-12)
            for name in alone
        )
    first = Batch(*(value[0] for value in every))
    losses = [float(task.loss(task.params, first._replace(key=key))) for key in every.key]
    assert len(set(losses)) == 5


def test_examples_keep_their_masks_when_others_are_added_behind_them() -> None:
    model = Dropped(nn.Dropout(0.5), nn.Dropout1d(0.5))
    assert torch.equal(masks(model, 3, 3, 4, 5), masks(model, 3, 8, 4, 5)[:3])


def test_evaluation_drops_nothing() -> None:
    model = Net(lambda: nn.Dropout(0.9))
    task, x = classification(model), torch.ones(4, 5)
    assert torch.equal(task.compute_outputs(task.params, x), model.head(torch.tanh(model.body(x))))
    keyed_layer = KeyedDropout(0.5, whole_channels=False).eval()
    assert torch.equal(keyed_layer(x), x)


def test_the_users_dropout_stays_where_it_is() -> None:
    model = Net(lambda: nn.Dropout(0.5))
    dropout = model.inner[1]
    for made in (with_keyed_dropout(model), classification(model).train_module):
        assert any(isinstance(module, KeyedDropout) for module in made.modules())
        assert made is not model
    assert model.inner[1] is dropout
    assert type(dropout) is nn.Dropout
    assert isinstance(with_keyed_dropout(dropout), KeyedDropout)


def nothing_to_train() -> nn.Module:
    return nn.Linear(5, 3).requires_grad_(False)


IMPURE: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: Net(lambda: nn.BatchNorm1d(6)),
        r"'inner\.1' \(BatchNorm1d\) .* fedtailor\.with_group_norm\(model\)",
    ),
    (
        lambda: Net(lambda: nn.BatchNorm2d(6)),
        r"'inner\.1' \(BatchNorm2d\) .* fedtailor\.with_group_norm\(model\)",
    ),
    (lambda: nn.BatchNorm1d(5), r"'model' \(BatchNorm1d\) .* fedtailor\.with_group_norm\(model\)"),
    (
        lambda: Net(lambda: nn.InstanceNorm1d(6, track_running_stats=True)),
        r"'inner\.1' \(InstanceNorm1d\) keeps running statistics; build it with "
        r"track_running_stats=False",
    ),
    (lambda: Net(nn.AlphaDropout), r"'inner\.1' \(AlphaDropout\) .* use torch\.nn\.Dropout"),
    (
        lambda: Net(nn.FeatureAlphaDropout),
        r"'inner\.1' \(FeatureAlphaDropout\) .* use torch\.nn\.Dropout",
    ),
    (
        lambda: Net(lambda: nn.Dropout(1.0)),
        r"'inner\.1' \(Dropout\) drops everything, got p = 1\.0",
    ),
    (lambda: Net(lambda: nn.LazyLinear(6)), r"'inner\.1' \(LazyLinear\) has no parameters yet"),
    (nothing_to_train, "the model has no trainable parameter; set requires_grad"),
    (nn.Tanh, "the model has no trainable parameter; set requires_grad"),
    (dict, r"expected a torch\.nn\.Module, got dict"),
]


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize(("make", "sentence"), IMPURE, ids=[sentence for _, sentence in IMPURE])
@pytest.mark.parametrize("kind", [classification, multilabel, regression, sequences])
def test_what_cannot_be_pure_is_refused_by_name(
    kind: Callable[[Any], Task], make: Any, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        kind(make())
    assert refused_in_one_sentence(caught)


def test_instance_norm_without_statistics_is_pure() -> None:
    assert classification(Net(lambda: nn.InstanceNorm1d(6))).constants == {}


class OwnInit(nn.Module):
    """Weights drawn in every way that torch.nn.init knows, and some more."""

    def __init__(self) -> None:
        super().__init__()
        ways = [
            "uniform_",
            "normal_",
            "trunc_normal_",
            "xavier_uniform_",
            "xavier_normal_",
            "kaiming_uniform_",
        ]
        ways += ["kaiming_normal_", "orthogonal_"]
        drawn = [getattr(nn.init, way)(torch.empty(6, 5)) for way in ways]
        drawn += [
            nn.init.sparse_(torch.empty(6, 5), 0.4),
            torch.rand(5),
            torch.randn(5),
            torch.rand_like(drawn[0]),
        ]
        drawn += [
            torch.randn_like(drawn[0]),
            torch.normal(0.0, 1.0, (5,)),
            torch.normal(torch.zeros(5), torch.ones(5)),
        ]
        drawn += [
            torch.empty(5).uniform_(),
            torch.empty(5).exponential_(),
            torch.bernoulli(torch.full((50,), 0.5)),
        ]
        drawn += [
            torch.randperm(9).float(),
            torch.randint(0, 99, (9,)).float(),
            torch.empty(5).normal_(1.0, 2.0),
        ]
        drawn += [torch.poisson(torch.full((9,), 3.0)), torch.multinomial(torch.ones(9), 4).float()]
        self.all = nn.ParameterList(drawn)


MADE: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(5, 6),
    "conv": lambda: nn.Conv2d(3, 4, 3),
    "embedding": lambda: nn.Embedding(7, 4),
    "lstm": lambda: nn.LSTM(5, 4, 2),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "attention": lambda: nn.MultiheadAttention(8, 2),
    "all": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Embedding(7, 4), nn.LSTM(4, 4), nn.Linear(4, 2)
    ),
    "own": OwnInit,
}


def weights(make: Callable[[], nn.Module], seed: int) -> dict[str, Tensor]:
    with seed_initialization(seed):
        return make().state_dict()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", MADE)
def test_first_weights_are_those_of_a_global_seed_without_touching_it(name: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        wanted = MADE[name]().state_dict()
    state = torch.random.get_rng_state()
    assert same(weights(MADE[name], 7), wanted)
    assert torch.equal(state, torch.random.get_rng_state())
    assert name == "group norm" or not same(weights(MADE[name], 8), wanted)


def test_a_generator_that_the_model_names_is_used() -> None:
    own = torch.Generator().manual_seed(1)
    with seed_initialization(7):
        drawn = torch.randn(3, generator=own)
    assert torch.equal(drawn, torch.randn(3, generator=torch.Generator().manual_seed(1)))


def test_outside_the_block_draws_are_global_again() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        wanted = torch.randn(3)
        torch.manual_seed(1)
        with pytest.raises(ValueError, match="stop"), seed_initialization(7):
            raise ValueError("stop")
        assert torch.equal(torch.randn(3), wanted)


def test_threads_do_not_disturb_each_other() -> None:
    barrier, made = threading.Barrier(2), {}

    def draw(seed: int) -> None:
        with seed_initialization(seed):
            layers = []
            for _ in range(20):
                barrier.wait(timeout=10)
                layers.append(nn.Linear(5, 6))
            made[seed] = nn.Sequential(*layers).state_dict()

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in (1, 2):
        assert same(
            made[seed], weights(lambda: nn.Sequential(*(nn.Linear(5, 6) for _ in range(20))), seed)
        )
    assert not same(made[1], made[2])


class Uncopyable(nn.Linear):
    """Holds a tensor with a history, which deepcopy refuses."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.doubled = self.weight * 2


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"the model must be copyable by copy\.deepcopy, but is not: "
    ):
        classification(Uncopyable())
