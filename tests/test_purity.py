"""Models made pure: dropout by key, what cannot be pure refused in one sentence, first weights from a seed."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as nnf

from fedtailor import keyed
from fedtailor.errors import InputError
from fedtailor.purity import KeyedDropout, _draws, drawn_from, with_keyed_dropout
from fedtailor.task import Task, classification, multilabel, probe, regression, sequences
from fedtailor.types import Batch


class Dropped(nn.Module):
    """Ones times a parameter of ones, through dropout; the loss below reads the masks off its outputs."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.one, self.layers = nn.Parameter(torch.ones(())), nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([layer(self.one * x) for layer in self.layers], 1)


def masks(model: nn.Module, key: int | Tensor, *shape: int) -> Tensor:
    """What each layer of a model does to ones in training: [examples, layers, ...]."""
    task = classification(model)
    seen: list[Tensor] = []
    watch = task.training.register_forward_hook(lambda module, given, outputs: seen.append(outputs))
    x, y = torch.ones(shape), torch.zeros(shape[0], *shape[1:], dtype=torch.int64)
    task.loss(task.params, Batch(x, y, torch.ones(shape[0]), torch.as_tensor(key)))
    watch.remove()
    return seen[0]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_share_and_the_mean_and_depends_on_the_key_alone(p: float) -> None:
    model = Dropped(nn.Dropout(p))
    mask = masks(model, 3, 40, 500)
    share = keyed.keep_share(p)
    assert set(mask.flatten().tolist()) == {0.0, torch.tensor(1 / share).item()}
    assert abs(float((mask > 0).double().mean()) - share) < 5 * (share * (1 - share) / mask.numel()) ** 0.5
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
    mask = masks(Dropped(shared, shared, nn.Sequential(nn.Dropout(0.5)), nn.Dropout2d(0.5), nn.Dropout(0.0)), 3, 6, 50)
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
    assert not any(type(module) is nn.Dropout for module in classification(Twice()).training.modules())


def test_uses_of_a_layer_do_not_add_up_from_call_to_call() -> None:
    task = classification(Twice())
    batch = Batch(torch.ones(4, 6), torch.zeros(4, 6, dtype=torch.int64), torch.ones(4), torch.tensor(5))
    first = task.loss(task.params, batch)
    with pytest.raises(RuntimeError):
        task.loss(task.params, batch._replace(y=torch.zeros(4, 5, dtype=torch.int64)))
    assert torch.equal(first, task.loss(task.params, batch))
    assert not torch.equal(first, task.loss(task.params, batch._replace(key=torch.tensor(6))))


class Net(nn.Module):
    def __init__(self, make: Callable[[], nn.Module] = nn.Identity) -> None:
        super().__init__()
        self.body, self.inner, self.head = nn.Linear(5, 6), nn.Sequential(nn.Tanh(), make()), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.inner(self.body(x)))
        return logits


def batches(clients: int) -> Batch:
    draws = np.random.default_rng(0)
    x, y = torch.from_numpy(draws.normal(size=(clients, 7, 5))), torch.from_numpy(draws.integers(0, 3, (clients, 7)))
    return Batch(x, y, torch.ones(clients, 7, dtype=torch.float64), torch.arange(clients) + 100)


def test_dropout_is_the_same_one_by_one_and_stacked() -> None:
    task, every = classification(Net(lambda: nn.Dropout(0.4))).to(dtype=torch.float64), batches(5)
    together = vmap(grad(task.loss), (None, 0))(task.params, every)
    for client in range(5):
        alone = grad(task.loss)(task.params, Batch(*(value[client] for value in every)))
        assert all(torch.allclose(together[name][client], alone[name], rtol=0, atol=1e-12) for name in alone)
    first = Batch(*(value[0] for value in every))
    losses = [float(task.loss(task.params, first._replace(key=key))) for key in every.key]
    assert len(set(losses)) == 5


def test_examples_keep_their_masks_when_others_are_added_behind_them() -> None:
    model = Dropped(nn.Dropout(0.5), nn.Dropout1d(0.5))
    assert torch.equal(masks(model, 3, 3, 4, 5), masks(model, 3, 8, 4, 5)[:3])


def test_evaluation_drops_nothing() -> None:
    model = Net(lambda: nn.Dropout(0.9))
    task, x = classification(model), torch.ones(4, 5)
    assert torch.equal(task.outputs(task.params, x), model.head(torch.tanh(model.body(x))))
    keyed_layer = KeyedDropout(0.5, whole_channels=False).eval()
    assert torch.equal(keyed_layer(x), x)


def test_the_users_dropout_stays_where_it_is() -> None:
    model = Net(lambda: nn.Dropout(0.5))
    dropout = model.inner[1]
    for made in (with_keyed_dropout(model), classification(model).training):
        assert any(isinstance(module, KeyedDropout) for module in made.modules())
        assert made is not model
    assert model.inner[1] is dropout
    assert type(dropout) is nn.Dropout
    assert isinstance(with_keyed_dropout(dropout), KeyedDropout)


def nothing_to_train() -> nn.Module:
    return nn.Linear(5, 3).requires_grad_(False)


IMPURE: list[tuple[Callable[[], Any], str]] = [
    (lambda: Net(lambda: nn.BatchNorm1d(6)), r"'inner\.1' \(BatchNorm1d\) .* fedtailor\.with_group_norm\(model\)"),
    (lambda: Net(lambda: nn.BatchNorm2d(6)), r"'inner\.1' \(BatchNorm2d\) .* fedtailor\.with_group_norm\(model\)"),
    (lambda: nn.BatchNorm1d(5), r"'model' \(BatchNorm1d\) .* fedtailor\.with_group_norm\(model\)"),
    (
        lambda: Net(lambda: nn.InstanceNorm1d(6, track_running_stats=True)),
        r"'inner\.1' \(InstanceNorm1d\) keeps running statistics; build it with track_running_stats=False",
    ),
    (lambda: Net(nn.AlphaDropout), r"'inner\.1' \(AlphaDropout\) .* use torch\.nn\.Dropout"),
    (lambda: Net(nn.FeatureAlphaDropout), r"'inner\.1' \(FeatureAlphaDropout\) .* use torch\.nn\.Dropout"),
    (lambda: Net(lambda: nn.Dropout(1.0)), r"'inner\.1' \(Dropout\) drops everything, got p = 1\.0"),
    (lambda: Net(lambda: nn.LazyLinear(6)), r"'inner\.1' \(LazyLinear\) has no parameters yet"),
    (nothing_to_train, "the model has no trainable parameter; set requires_grad"),
    (nn.Tanh, "the model has no trainable parameter; set requires_grad"),
    (dict, r"expected a torch\.nn\.Module, got dict"),
]


def refused_in_one_sentence(caught: pytest.ExceptionInfo[InputError]) -> bool:
    message = str(caught.value)
    return message.startswith("Task: ") and message.endswith(".") and "\n" not in message and ". " not in message


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize(("make", "sentence"), IMPURE, ids=[sentence for _, sentence in IMPURE])
@pytest.mark.parametrize("kind", [classification, multilabel, regression, sequences])
def test_what_cannot_be_pure_is_refused_by_name(kind: Callable[[Any], Task], make: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        kind(make())
    assert refused_in_one_sentence(caught)


def test_instance_norm_without_statistics_is_pure() -> None:
    assert classification(Net(lambda: nn.InstanceNorm1d(6))).constants == {}


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
        probe(task, X, Y)
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
    assert torch.allclose(probe(task, x, Y), task.outputs(task.params, x), atol=1e-6)
    with pytest.raises(InputError, match="set the dropout of recurrent and attention layers to 0") as caught:
        probe(classification(Sequence(LAYERS[name](0.3))), x, Y)
    assert refused_in_one_sentence(caught)


def test_attention_draws_when_it_drops_something() -> None:
    flash, q = torch.ops.aten._scaled_dot_product_flash_attention.default, torch.ones(1, 1, 2, 8)
    assert [_draws(flash, (q, q, q, p), {}) for p in (0.0, 0.2)] == [False, True]
    assert [_draws(flash, (q, q, q), given) for given in ({}, {"dropout_p": 0.2})] == [False, True]
    assert _draws(torch.ops.aten.bernoulli_.float, (q, 0.0), {})


def test_probe_accepts_models_with_keyed_dropout_and_strange_buffers() -> None:
    for model in (Net(lambda: nn.Dropout(0.5)), Says(lambda self, x: x * 2), Net(lambda: nn.GroupNorm(2, 6))):
        task = classification(model)
        state = torch.random.get_rng_state()
        assert torch.equal(probe(task, X, Y), task.outputs(task.params, X))
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
    (classification, X, Y[:, None], r"outputs of shape \[2, 3\] needs y of shape \[2\], got \[2, 1\]"),
    (classification, X, torch.ones(2, 3) / 3, r"needs y of shape \[2\], got \[2, 3\]"),
    (classification, X, Y.double(), "failed with "),
    (classification, X, Y + 2, "tells 3 classes apart, but there is a label 4"),
    (multilabel, X, Y, r"multilabel with outputs of shape \[2, 3\] needs y of shape \[2, 3\], got \[2\]"),
    (multilabel, X, torch.ones(2, 1), r"needs y of shape \[2, 3\], got \[2, 1\]"),
    (regression, X, torch.ones(2), "failed with .*check the model's input shape and the task .regression"),
    (sequences, X, Y, r"sequences needs outputs of 3 dimensions, got outputs of shape \[2, 3\]"),
    (sequences, torch.ones(2, 6, 5), torch.zeros(2, 3, dtype=torch.int64), r"needs y of shape \[2, 6\], got \[2, 3\]"),
]


@pytest.mark.parametrize(("kind", "x", "y", "sentence"), UNFIT)
def test_probe_refuses_examples_that_do_not_fit(kind: Any, x: Tensor, y: Tensor, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        probe(kind(nn.Linear(5, 3)), x, y)
    assert refused_in_one_sentence(caught)


class OwnInit(nn.Module):
    """Weights drawn in every way that torch.nn.init knows, and some more."""

    def __init__(self) -> None:
        super().__init__()
        ways = ["uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_"]
        ways += ["kaiming_normal_", "orthogonal_"]
        drawn = [getattr(nn.init, way)(torch.empty(6, 5)) for way in ways]
        drawn += [nn.init.sparse_(torch.empty(6, 5), 0.4), torch.rand(5), torch.randn(5), torch.rand_like(drawn[0])]
        drawn += [torch.randn_like(drawn[0]), torch.normal(0.0, 1.0, (5,)), torch.normal(torch.zeros(5), torch.ones(5))]
        drawn += [torch.empty(5).uniform_(), torch.empty(5).exponential_(), torch.bernoulli(torch.full((50,), 0.5))]
        drawn += [torch.randperm(9).float(), torch.randint(0, 99, (9,)).float(), torch.empty(5).normal_(1.0, 2.0)]
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
    with drawn_from(seed):
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
    with drawn_from(7):
        drawn = torch.randn(3, generator=own)
    assert torch.equal(drawn, torch.randn(3, generator=torch.Generator().manual_seed(1)))


def test_outside_the_block_draws_are_global_again() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        wanted = torch.randn(3)
        torch.manual_seed(1)
        with pytest.raises(ValueError, match="stop"), drawn_from(7):
            raise ValueError("stop")
        assert torch.equal(torch.randn(3), wanted)


def test_threads_do_not_disturb_each_other() -> None:
    barrier, made = threading.Barrier(2), {}

    def draw(seed: int) -> None:
        with drawn_from(seed):
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
        assert same(made[seed], weights(lambda: nn.Sequential(*(nn.Linear(5, 6) for _ in range(20))), seed))
    assert not same(made[1], made[2])


class Uncopyable(nn.Linear):
    """Holds a tensor with a history, which deepcopy refuses."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.doubled = self.weight * 2


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    with pytest.raises(InputError, match=r"the model must be copyable by copy\.deepcopy, but is not: "):
        classification(Uncopyable())
