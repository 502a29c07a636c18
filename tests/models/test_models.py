"""The papers' models: their tables, their derivatives one by one and vectorized, and the LSTM
against torch's.
"""

import shutil
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import prod

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as nnf

from agreement import distance
from fedtailor import Task, classification, models, sequences
from fedtailor.core import trees
from fedtailor.core.autodiff import finite_difference_hvp, hvp
from fedtailor.core.functionalize import seed_initialization
from fedtailor.core.task import validate_task
from fedtailor.core.types import Batch, Params
from fedtailor.models.resnet import ResidualBlock
from fedtailor.ops.lstm import lstm_layer

CLASSES, PLACES = 4, 3
IMAGES: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...]]] = {
    "mlp": (partial(models.mlp, 12, (8, 6), CLASSES, nn.ELU), (3, 2, 2)),
    "lenet": (partial(models.lenet, (3, 16, 17), CLASSES), (3, 16, 17)),
    "fsl_emnist": (partial(models.fsl_emnist, (1, 5, 4), CLASSES), (1, 5, 4)),
    "fsl_cifar": (partial(models.fsl_cifar, (3, 4, 6), CLASSES), (3, 4, 6)),
    "fedsim_femnist": (partial(models.fedsim_femnist, (7, 6), CLASSES), (7, 6)),
    "conv4": (partial(models.conv4, (3, 16, 16), CLASSES, channels=4), (3, 16, 16)),
}
TEXTS: dict[str, Callable[[], nn.Sequential]] = {
    "shakespeare": partial(models.shakespeare, CLASSES),
    "stackoverflow": partial(models.stackoverflow, CLASSES),
    "small": partial(models.language_model, CLASSES, embedding=2, hidden=3, layers=2, dense=5),
}
NAMES = (*IMAGES, *TEXTS)


def made(make: Callable[[], nn.Sequential]) -> nn.Sequential:
    with seed_initialization(1):
        return make()


def model(name: str) -> nn.Sequential:
    return made(IMAGES[name][0] if name in IMAGES else TEXTS[name])


def task(name: str) -> Task:
    kind = classification if name in IMAGES else partial(sequences, padding=(0,))
    return kind(model(name)).to(dtype=torch.float64)


def batch(name: str, *lead: int, size: int = 2) -> Batch:
    """Random examples for a model, each batch with a key of its own."""
    source = torch.Generator().manual_seed(5)
    y = torch.randint(
        CLASSES, (*lead, size) if name in IMAGES else (*lead, size, PLACES), generator=source
    )
    x = torch.randint(CLASSES, y.shape, generator=source)
    if name in IMAGES:
        x = torch.rand(*lead, size, *IMAGES[name][1], generator=source, dtype=torch.float64)
    return Batch(
        x, y, torch.ones(*lead, size, dtype=torch.float64), torch.arange(prod(lead)).reshape(lead)
    )


def perturbed(params: Params, scale: float, seed: int = 7) -> Params:
    source = torch.Generator().manual_seed(seed)
    return {
        k: v + scale * torch.randn(v.shape, generator=source, dtype=v.dtype)
        for k, v in params.items()
    }


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


Table = list[tuple[type[nn.Module], tuple[int, ...], int]]
FSL_2: Table = [
    (nn.Conv2d, (32, 28, 28), 320),
    (nn.Conv2d, (64, 26, 26), 18_496),
    (nn.MaxPool2d, (64, 13, 13), 0),
    (nn.Dropout, (64, 13, 13), 0),
    (nn.Flatten, (10_816,), 0),
    (nn.Linear, (128,), 1_384_576),
    (nn.Dropout, (128,), 0),
    (nn.Linear, (45,), 5_805),
]
FSL_3: Table = [
    (nn.Conv2d, (32, 32, 32), 896),
    (
        nn.MaxPool2d,
        (32, 16, 16),
        0,
    ),  # the table has (13, 13, 64), which does not fit the rows around it
    (nn.Conv2d, (64, 16, 16), 18_496),
    (nn.MaxPool2d, (64, 8, 8), 0),
    (nn.Dropout, (64, 8, 8), 0),
    (nn.Flatten, (4_096,), 0),
    (nn.Linear, (128,), 524_416),
    (nn.Dropout, (128,), 0),
    (nn.Linear, (10,), 1_290),
]
FEDSIM_6: Table = [
    (nn.Conv2d, (32, 26, 26), 320),
    (nn.Conv2d, (64, 24, 24), 18_496),
    (nn.MaxPool2d, (64, 12, 12), 0),
    (nn.Dropout, (64, 12, 12), 0),
    (nn.Flatten, (9_216,), 0),
    (nn.Linear, (128,), 1_179_776),
    (nn.Dropout, (128,), 0),
    (nn.Linear, (62,), 7_998),
]
FEDMETA_PER_A2: Table = [  # its appendix; parameters are kernels times channels, and biases
    (nn.Conv2d, (6, 28, 28), 6 * (3 * 25 + 1)),
    (nn.MaxPool2d, (6, 14, 14), 0),
    (nn.Conv2d, (16, 10, 10), 16 * (6 * 25 + 1)),
    (nn.MaxPool2d, (16, 5, 5), 0),
    (nn.Flatten, (400,), 0),
    (nn.Linear, (120,), 120 * 401),
    (nn.Linear, (84,), 84 * 121),
    (nn.Linear, (10,), 10 * 85),
]


@pytest.mark.parametrize(
    ("make", "shape", "table"),
    [
        (models.fsl_emnist, (1, 28, 28), FSL_2),
        (models.fsl_cifar, (3, 32, 32), FSL_3),
        (models.fedsim_femnist, (1, 28, 28), FEDSIM_6),
        (models.lenet, (3, 32, 32), FEDMETA_PER_A2),
    ],
)
def test_convolutional_models_are_their_papers_tables(
    make: Callable[[tuple[int, ...], int], nn.Sequential], shape: tuple[int, ...], table: Table
) -> None:
    net, x, rows = make(shape, table[-1][1][0]).eval(), torch.zeros(1, *shape), []
    for layer in net:
        x = layer(x)
        if not isinstance(layer, nn.ReLU):
            rows.append((type(layer), tuple(x.shape[1:]), count(layer)))
    assert rows == table
    hidden = [after for layer, after in pairwise(net) if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert all(isinstance(after, nn.ReLU) for after in hidden)
    assert [layer.p for layer in net if isinstance(layer, nn.Dropout)] in ([], [0.25, 0.5])


def test_perceptrons_of_the_papers() -> None:
    per_fedavg, fedmeta_per = models.mlp(784, (80, 60), 10, nn.ELU), models.mlp(784, (100,), 10)
    kinds = [type(layer) for layer in per_fedavg]
    assert kinds == [nn.Flatten, nn.Linear, nn.ELU, nn.Linear, nn.ELU, nn.Linear]
    assert count(per_fedavg) == 80 * 785 + 60 * 81 + 10 * 61
    assert count(fedmeta_per) == 100 * 785 + 10 * 101


def test_text_models_are_fedsims_tables_7_and_8() -> None:
    by_character, by_word = models.shakespeare(), models.stackoverflow()
    rows = {name: count(layer) for name, layer in by_character.named_children()}
    assert rows == {"embedding": 720, "lstm": 271_360 + 525_312, "head": 23_130}
    assert (
        sum(p.numel() for name, p in by_character.named_parameters() if name.endswith("_l0"))
        == 271_360
    )
    rows = {name: count(layer) for name, layer in by_word.named_children()}
    assert rows == {"embedding": 960_000, "lstm": 2_055_560, "dense": 64_416, "head": 970_000}
    assert by_character(torch.arange(6).reshape(2, 3)).shape == (2, 3, 90)
    assert by_word(torch.arange(6).reshape(2, 3)).shape == (2, 3, 10_000)


@pytest.mark.parametrize("name", NAMES)
def test_a_task_takes_the_model_whose_last_layer_is_its_linear_head(name: str) -> None:
    learned, net, data = task(name), model(name).double().eval(), batch(name)
    outputs = validate_task(learned, data.x, data.y)
    assert outputs.shape == (*data.y.shape, CLASSES)
    assert isinstance(net[-1], nn.Linear)
    assert list(net.modules())[-1] is net[-1]
    with torch.no_grad():
        assert distance(net[-1](net[:-1](data.x)), outputs) < 1e-14


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_three_clients_at_once_are_those_of_each(name: str) -> None:
    learned, data = task(name), batch(name, 3)
    clients = trees.stack([perturbed(learned.params, 0.01, seed) for seed in range(3)])
    together = vmap(grad(learned.loss))(clients, data)
    for client in range(3):
        alone = grad(learned.loss)(trees.take_row(clients, client), trees.take_row(data, client))
        assert distance(trees.take_row(together, client), alone) < 1e-12
        assert all(bool(leaf.any()) for leaf in trees.leaves(alone))


@pytest.mark.parametrize("name", NAMES)
def test_hessian_products_are_differences_of_gradients(name: str) -> None:
    learned, data = task(name), batch(name)
    along = perturbed(trees.zeros_like(learned.params), 1.0)
    product = hvp(learned.loss, learned.params, data, along)
    assert float(trees.norm(product)) > 1e-3
    nearly = finite_difference_hvp(learned.loss, learned.params, data, along, 1e-6)
    assert float(trees.norm(trees.sub(product, nearly)) / trees.norm(product)) < 1e-6


def test_the_gradient_of_a_gradient_is_vectorized_too() -> None:
    learned, data = task("small"), batch("small", 3)
    clients = trees.stack([perturbed(learned.params, 0.1, seed) for seed in range(3)])
    product = partial(hvp, learned.loss)
    together = vmap(product)(clients, data, clients)
    for client in range(3):
        own = trees.take_row(clients, client)
        assert (
            distance(
                trees.take_row(together, client), product(own, trees.take_row(data, client), own)
            )
            < 1e-12
        )


def lstms(layers: int) -> tuple[models.LSTM, nn.LSTM]:
    """Ours and torch's with the same weights; ours has the sum of torch's biases."""
    with seed_initialization(3):
        ours, theirs = (
            models.LSTM(2, 3, layers).double(),
            nn.LSTM(2, 3, layers, batch_first=True).double(),
        )
    state = theirs.state_dict()
    for layer in range(layers):
        state[f"bias_ih_l{layer}"] = state[f"bias_ih_l{layer}"] + state.pop(f"bias_hh_l{layer}")
    ours.load_state_dict(state)
    return ours, theirs


def loss_of(module: nn.Module, params: Params, x: Tensor) -> Tensor:
    said = functional_call(module, params, (x,))
    loss: Tensor = ((said[0] if isinstance(said, tuple) else said) ** 3).sum()
    return loss


def squared_slope(module: nn.Module, params: Params, x: Tensor) -> Tensor:
    """The squared gradient by the parameters that ours and torch's LSTM share."""
    slope = grad(partial(loss_of, module))(params, x)
    shared = {name: value for name, value in slope.items() if not name.startswith("bias_hh")}
    return trees.dot(shared, shared)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("places", [1, 5])
def test_the_lstm_is_torchs_and_so_are_its_first_and_second_derivatives(
    layers: int, places: int
) -> None:
    x = torch.rand(4, places, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours, theirs = lstms(layers)
    w, v = ours.state_dict(), theirs.state_dict()
    assert functional_call(ours, w, (x,)).shape == (4, places, 3)
    assert distance(functional_call(ours, w, (x,)), functional_call(theirs, v, (x,))[0]) < 1e-14
    for of in (loss_of, squared_slope):
        by_params, by_inputs = grad(partial(of, ours), argnums=(0, 1))(w, x)
        expected, inputs_expected = grad(partial(of, theirs), argnums=(0, 1))(v, x)
        assert distance(by_params, {name: expected[name] for name in by_params}) < 1e-12
        assert distance(by_inputs, inputs_expected) < 1e-12
        assert float(by_inputs.abs().max()) > 1e-6


def test_derivatives_of_the_recurrence_are_right_in_every_mode() -> None:
    source = torch.Generator().manual_seed(2)
    shapes = (
        (3, 2, 3),
        (8, 3),
        (8,),
        (8, 2),
    )  # places, examples, inputs; weights of two units' gates for them; others
    drawn = tuple(
        torch.randn(s, generator=source, dtype=torch.float64, requires_grad=True) for s in shapes
    )
    assert torch.autograd.gradcheck(lstm_layer, drawn, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lstm_layer, drawn)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_compiled_vectorized_gradient_of_a_text_model_is_the_eager_one() -> None:
    learned, data = task("small"), batch("small", 3)
    clients = trees.stack([perturbed(learned.params, 0.1, seed) for seed in range(3)])
    step = vmap(grad(learned.loss))
    operations = make_fx(
        lambda *given: step(*given), tracing_mode="fake", _allow_non_fake_inputs=True
    )(clients, data)
    assert (
        distance(torch.compile(operations, dynamic=False)(clients, data), step(clients, data))
        < 1e-12
    )


@pytest.mark.parametrize(
    "dims", [(0, 0, 0, 0), (2, None, 1, None), (None, 1, None, 1), (1, 2, 0, 0)]
)
def test_a_stack_of_recurrences_is_each_of_them(dims: tuple[int | None, ...]) -> None:
    source = torch.Generator().manual_seed(3)
    single = (
        (5, 2, 4),
        (12, 4),
        (12,),
        (12, 3),
    )  # places, examples, inputs; weights of three units' gates; others
    drawn = [
        torch.randn(
            shape if dim is None else (*shape[:dim], 4, *shape[dim:]),
            generator=source,
            dtype=torch.float64,
        )
        for shape, dim in zip(single, dims, strict=True)
    ]
    of = grad(lambda *given: (lstm_layer(*given) ** 2).sum(), argnums=(0, 1, 2, 3))
    found = vmap(of, dims)(*drawn)
    for number in range(4):
        own = [
            each if dim is None else each.select(dim, number)
            for each, dim in zip(drawn, dims, strict=True)
        ]
        for whole, alone in zip(found, of(*own), strict=True):
            torch.testing.assert_close(whole[number], alone, rtol=1e-12, atol=1e-13)


def test_resnet18_has_resnets_size_and_stages() -> None:
    assert (
        count(models.resnet18((3, 32, 32), 1000)) == 11_689_512
    )  # as published; FedSIM prints no table for it
    net = made(partial(models.resnet18, (3, 24, 24), 100))
    assert count(net) == 11_689_512 - 900 * 513
    assert count(models.resnet18((3, 24, 24), 100, stem="3x3")) == count(net) - 3 * 64 * (49 - 9)
    x, sides = torch.rand(2, 3, 24, 24, generator=torch.Generator().manual_seed(1)), []
    said = x
    for layer in net:
        said = layer(said)
        if isinstance(layer, ResidualBlock):
            sides.append(tuple(said.shape[1:]))
    assert sides == [
        (c, s, s) for c, s in ((64, 6), (128, 3), (256, 2), (512, 1)) for _ in range(2)
    ]
    assert said.shape == (2, 100)
    assert isinstance(net[-1], nn.Linear)
    slopes = torch.autograd.grad(
        nnf.cross_entropy(said, torch.tensor([3, 98])), list(net.parameters())
    )
    assert all(bool(slope.isfinite().all()) and bool(slope.any()) for slope in slopes)


@pytest.mark.parametrize(("inputs", "outputs", "stride"), [(4, 4, 1), (4, 6, 2), (4, 4, 2)])
def test_a_residual_block_adds_what_it_was_given(inputs: int, outputs: int, stride: int) -> None:
    with seed_initialization(2):
        block = ResidualBlock(inputs, outputs, stride, groups=2)
    x = torch.rand(2, inputs, 5, 5, generator=torch.Generator().manual_seed(3)) - 0.5
    w = [p for p in block.parameters() if p.ndim == 4]
    inner = nnf.relu(nnf.group_norm(nnf.conv2d(x, w[0], stride=stride, padding=1), 2))
    past = x if len(w) == 2 else nnf.group_norm(nnf.conv2d(x, w[2], stride=stride), 2)
    assert len(w) == (2 if (inputs, stride) == (outputs, 1) else 3)
    assert torch.allclose(
        block(x), nnf.relu(nnf.group_norm(nnf.conv2d(inner, w[1], padding=1), 2) + past), atol=1e-6
    )


def test_first_weights_follow_the_seed_and_leave_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    for make in (TEXTS["small"], partial(models.resnet18, (8, 8), 2), IMAGES["fsl_cifar"][0]):
        assert distance(made(make).state_dict(), made(make).state_dict()) == 0
    lstm = made(TEXTS["shakespeare"])[1]
    assert all(
        0.99 / 16 < float(value.abs().max()) <= 1 / 16 for value in lstm.state_dict().values()
    )
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("make", "least"),
    [
        (models.lenet, 16),
        (models.fsl_emnist, 4),
        (models.fsl_cifar, 4),
        (models.fedsim_femnist, 6),
        (models.conv4, 16),
    ],
)
def test_images_that_are_too_small_are_refused(
    make: Callable[[tuple[int, ...], int], nn.Sequential], least: int
) -> None:
    assert make((1, least, least), 2)(torch.zeros(1, 1, least, least)).shape == (1, 2)
    name = getattr(make, "__name__", "")
    with pytest.raises(
        ValueError,
        match=f"^{name}: images must be at least {least} x {least}, got 40 x {least - 1}\\.$",
    ):
        make((1, 40, least - 1), 2)
    with pytest.raises(ValueError, match=rf"^{name}: images must be of shape .*, got \[784\]\.$"):
        make((784,), 2)


def test_other_wrong_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^resnet18: stem must be 7x7 or 3x3, got '5x5'\.$"):
        models.resnet18((3, 32, 32), 10, stem="5x5")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"^LSTM: sequences must have at least one token, got none\.$"
    ):
        model("small")(torch.zeros(2, 0, dtype=torch.int64))
