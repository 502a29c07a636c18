"""Optimizers against `torch.optim` and plain numpy loops; schedules against their formulas."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from fedtailor.core import trees
from fedtailor.core.optimizers import Moments, Optimizer, adam, adamw, schedule, sgd, yogi
from fedtailor.core.schedules import constant, cosine, linear
from fedtailor.core.types import Params, Tree
from fedtailor.errors import InputError

Array = NDArray[np.float64]

OPTIMISERS = {
    "sgd": sgd(0.1),
    "momentum": sgd(0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": sgd(0.1, momentum=0.9, nesterov=True),
    "adam": adam(0.1, weight_decay=0.01),
    "uncorrected": adam(0.1, bias_correction=False),
    "adamw": adamw(0.1),
    "yogi": yogi(0.1),
    "tensor": sgd(torch.tensor(0.1, dtype=torch.float64)),
}
every_optimizer = pytest.mark.parametrize("optimizer", OPTIMISERS.values(), ids=OPTIMISERS)


def draw(seed: int, *lead: int, dtype: torch.dtype = torch.float64) -> Params:
    source = torch.Generator().manual_seed(seed)
    shapes = {"w": (3, 2), "b": (2,), "s": ()}
    return {
        k: torch.randn((*lead, *v), generator=source, dtype=torch.float64).to(dtype)
        for k, v in shapes.items()
    }


def loss(params: Params) -> Tensor:
    """A small problem that is not quadratic, with a parameter that has no dimensions."""
    x = torch.linspace(-1, 1, 12, dtype=params["w"].dtype).reshape(4, 3)
    out = torch.tanh(x @ params["w"] + params["b"]) * torch.exp(params["s"])
    return ((out - 0.3) ** 2).mean() + torch.cos(params["w"]).sum()


def gradient(params: Params) -> Params:
    found: Params = torch.func.grad(loss)(params)
    return found


def run(optimizer: Optimizer, params: Params, steps: int) -> tuple[Params, Tree]:
    state = optimizer.init(params)
    for _ in range(steps):
        params, state = optimizer.update(gradient(params), state, params)
    return params, state


def run_torch(
    make: Callable[[list[Tensor]], torch.optim.Optimizer], params: Params, steps: int
) -> Params:
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    optimizer = make(list(leaves.values()))
    for _ in range(steps):
        optimizer.zero_grad()
        loss(leaves).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: leaf.detach() for name, leaf in leaves.items()}


def assert_close(found: Tree, wanted: Tree, atol: float = 1e-12) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.parametrize(
    ("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True), (0.5, True)]
)
def test_sgd_is_that_of_torch(momentum: float, nesterov: bool, weight_decay: float) -> None:
    ours, _ = run(sgd(0.1, momentum, nesterov, weight_decay), draw(1), 50)
    theirs = run_torch(
        lambda p: torch.optim.SGD(p, 0.1, momentum, 0, weight_decay, nesterov), draw(1), 50
    )
    assert_close(ours, theirs)


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.parametrize(
    ("b1", "b2", "eps"), [(0.9, 0.999, 1e-8), (0.5, 0.9, 1e-3), (0.0, 0.99, 1e-8), (0.9, 0.0, 0.1)]
)
def test_adam_and_adamw_are_those_of_torch(
    b1: float, b2: float, eps: float, weight_decay: float
) -> None:
    options: Any = {"lr": 0.03, "betas": (b1, b2), "eps": eps, "weight_decay": weight_decay}
    ours, _ = run(adam(0.03, b1, b2, eps, weight_decay), draw(1), 50)
    assert_close(ours, run_torch(lambda p: torch.optim.Adam(p, **options), draw(1), 50))
    ours, _ = run(adamw(0.03, b1, b2, eps, weight_decay), draw(1), 50)
    assert_close(ours, run_torch(lambda p: torch.optim.AdamW(p, **options), draw(1), 50))


def test_defaults_are_those_of_torch() -> None:
    assert_close(run(adam(1e-3), draw(1), 50)[0], run_torch(torch.optim.Adam, draw(1), 50))
    assert_close(run(adamw(1e-3), draw(1), 50)[0], run_torch(torch.optim.AdamW, draw(1), 50))
    assert_close(run(sgd(1e-3), draw(1), 50)[0], run_torch(torch.optim.SGD, draw(1), 50))


def slope(w: Array) -> Array:
    found: Array = np.tanh(w - 0.5) + 0.1 * w**3
    return found


def run_numpy(second: Callable[[Array, Array], Array], initial: float, eps: float) -> Array:
    """The server's loop of FedOpt (Reddi et al., 2021, algorithm 2) on the change -slope: b1 = 0.9,
    lr = 0.05.
    """
    x, m, v = np.linspace(-2, 3, 5), np.zeros(5), np.full(5, initial)
    for _ in range(50):
        change = -slope(x)
        m = 0.9 * m + 0.1 * change
        v = second(v, change)
        x = x + 0.05 * m / (np.sqrt(v) + eps)
    return x


def run_alike(optimizer: Optimizer) -> Array:
    params = {"x": torch.linspace(-2, 3, 5, dtype=torch.float64)}
    state = optimizer.init(params)
    for _ in range(50):
        params, state = optimizer.update(
            {"x": torch.from_numpy(slope(params["x"].numpy()))}, state, params
        )
    found: Array = params["x"].numpy()
    return found


def test_yogi_is_that_of_fedyogi() -> None:
    wanted = run_numpy(lambda v, d: v - (1 - 0.99) * d**2 * np.sign(v - d**2), 1e-6, 1e-3)
    np.testing.assert_allclose(run_alike(yogi(0.05)), wanted, rtol=0, atol=1e-12)
    wanted = run_numpy(lambda v, d: v - (1 - 0.5) * d**2 * np.sign(v - d**2), 2.0, 0.1)
    np.testing.assert_allclose(
        run_alike(yogi(0.05, b2=0.5, eps=0.1, initial=2.0)), wanted, rtol=0, atol=1e-12
    )


def test_adam_without_bias_correction_is_that_of_fedadam() -> None:
    wanted = run_numpy(lambda v, d: 0.99 * v + 0.01 * d**2, 0.0, 1e-3)
    found = run_alike(adam(0.05, b2=0.99, eps=1e-3, bias_correction=False))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


@every_optimizer
def test_clients_at_unequal_steps_go_on_together_as_they_would_alone(optimizer: Optimizer) -> None:
    clients = [run(optimizer, draw(10 + i), 2 * i) for i in range(4)]
    alone = [optimizer.update(gradient(params), state, params) for params, state in clients]
    stacked = (
        trees.stack([params for params, _ in clients]),
        trees.stack([state for _, state in clients]),
    )
    together = vmap(optimizer.update)(vmap(gradient)(stacked[0]), stacked[1], stacked[0])
    assert_close(together, trees.stack(alone), 1e-14)


@every_optimizer
def test_vectorized_states_start_like_stacked_ones(optimizer: Optimizer) -> None:
    cohort = draw(1, 4)
    wanted = trees.stack([optimizer.init(trees.take_row(cohort, i)) for i in range(4)])
    assert_close(vmap(lambda p: (optimizer.init(p), p))(cohort)[0], wanted, 0)


@pytest.mark.parametrize("make", [sgd, adam, adamw, yogi])
def test_every_client_may_have_its_own_rate(make: Callable[[Tensor | float], Optimizer]) -> None:
    rates = torch.tensor([0.1, 0.2, 0.0], dtype=torch.float64)
    params = draw(1)
    state = make(0.1).init(params)
    together = vmap(lambda lr: make(lr).update(gradient(params), state, params)[0])(rates)
    alone = [make(rate).update(gradient(params), state, params)[0] for rate in (0.1, 0.2)]
    assert_close(together, trees.stack([*alone, params]), 1e-15)


@every_optimizer
def test_optimizers_pickle(optimizer: Optimizer) -> None:
    assert_close(
        run(pickle.loads(pickle.dumps(optimizer)), draw(1), 3), run(optimizer, draw(1), 3), 0
    )


@every_optimizer
def test_inputs_stay_as_they_were(optimizer: Optimizer) -> None:
    params, state = run(optimizer, draw(1), 2)
    given = (draw(2), state, params)
    before = copy.deepcopy(given)
    moved, _ = optimizer.update(*given)
    assert_close(given, before, 0)
    assert not torch.equal(moved["w"], params["w"])


@every_optimizer
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_states_and_steps_keep_dtype_and_device(optimizer: Optimizer, dtype: torch.dtype) -> None:
    params = draw(1, dtype=dtype)
    moved, state = optimizer.update(draw(2, dtype=dtype), optimizer.init(params), params)
    moments = [state.mean, state.square] if isinstance(state, Moments) else [state]
    assert {leaf.dtype for leaf in trees.leaves((moved, *moments))} == {dtype}
    away = optimizer.init(trees.to(params, torch.device("meta")))
    assert {leaf.device.type for leaf in trees.leaves(away)} <= {"meta"}


def test_what_the_states_hold() -> None:
    params = draw(1)
    assert sgd(0.1).init(params) == ()
    assert_close(sgd(0.1, momentum=0.9).init(params), trees.zeros_like(params), 0)
    count = torch.zeros((), dtype=torch.float64)
    assert_close(
        adam(0.1).init(params),
        Moments(count, trees.zeros_like(params), trees.zeros_like(params)),
        0,
    )
    assert_close(
        yogi(0.1, initial=0.5).init(params),
        Moments(count, trees.zeros_like(params), trees.full_like(params, 0.5)),
        0,
    )
    assert adam(0.1).init({}).mean == {}


@pytest.mark.parametrize(
    "optimizer", [adam(0.1), adam(0.1, bias_correction=False), adamw(0.1), yogi(0.1)]
)
def test_steps_are_counted(optimizer: Optimizer) -> None:
    assert run(optimizer, draw(1), 3)[1].steps.item() == 3


def test_steps_are_counted_past_the_reach_of_half_precision() -> None:
    params = {"w": torch.zeros(1, dtype=torch.bfloat16)}
    state = adam(0.1).init(params)
    state = state._replace(steps=state.steps + 256)
    assert adam(0.1).update(params, state, params)[1].steps.item() == 257


def test_bias_correction_is_exact_in_single_precision() -> None:
    """With one and the same gradient at every step, each step is exactly lr long."""
    params, optimizer = {"w": torch.zeros(1)}, adam(1.0, eps=1e-30)
    state = optimizer.init(params)
    for _ in range(5):
        moved, state = optimizer.update({"w": torch.full((1,), 0.7)}, state, params)
        assert moved["w"].item() == pytest.approx(-1, abs=1e-6)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: sgd(-1.0), "SGD: lr must be positive, got -1.0."),
        (lambda: sgd(0.0), "SGD: lr must be positive, got 0.0."),
        (lambda: sgd(math.nan), "SGD: lr must be positive, got nan."),
        (lambda: adam(0.0), "Adam: lr must be positive, got 0.0."),
        (lambda: adamw(-0.1), "AdamW: lr must be positive, got -0.1."),
        (lambda: yogi(0.0), "Yogi: lr must be positive, got 0.0."),
        (lambda: sgd(0.1, momentum=1.0), "SGD: momentum must be in [0, 1), got 1.0."),
        (lambda: sgd(0.1, momentum=-0.1), "SGD: momentum must be in [0, 1), got -0.1."),
        (lambda: sgd(0.1, nesterov=True), "SGD: nesterov needs a positive momentum, got 0.0."),
        (lambda: sgd(0.1, weight_decay=-0.1), "SGD: weight_decay must not be negative, got -0.1."),
        (
            lambda: adam(0.1, weight_decay=-0.1),
            "Adam: weight_decay must not be negative, got -0.1.",
        ),
        (
            lambda: adamw(0.1, weight_decay=-0.1),
            "AdamW: weight_decay must not be negative, got -0.1.",
        ),
        (lambda: adam(0.1, b1=1.0), "Adam: b1 must be in [0, 1), got 1.0."),
        (lambda: adamw(0.1, b2=-0.1), "AdamW: b2 must be in [0, 1), got -0.1."),
        (lambda: yogi(0.1, b2=1.0), "Yogi: b2 must be in [0, 1), got 1.0."),
        (lambda: adam(0.1, eps=0.0), "Adam: eps must be positive, got 0.0."),
        (lambda: yogi(0.1, eps=-1.0), "Yogi: eps must be positive, got -1.0."),
        (lambda: yogi(0.1, initial=-1.0), "Yogi: initial must not be negative, got -1.0."),
        (lambda: linear(0), "linear: rounds must be at least 1, got 0."),
        (lambda: cosine(-3), "cosine: rounds must be at least 1, got -3."),
        (lambda: schedule("cosine", 0), "cosine: rounds must be at least 1, got 0."),
        (
            lambda: schedule("linear", None),
            "schedule: linear needs the number of rounds, got None.",
        ),
        (
            lambda: schedule("cosine", None),
            "schedule: cosine needs the number of rounds, got None.",
        ),
        (
            lambda: schedule("step", 5),  # type: ignore[arg-type]
            "schedule: name must be constant, linear or cosine, got 'step'.",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value) == sentence


FACTORS: dict[str, Callable[[int], float]] = {
    "constant": lambda t: 1.0,
    "linear": lambda t: max(0.0, 1 - t / 10),
    "cosine": lambda t: 0.5 * (1 + math.cos(math.pi * t / 10)) if t < 10 else 0.0,
}
SCHEDULES = {"constant": constant(), "linear": linear(10), "cosine": cosine(10)}
every_schedule = pytest.mark.parametrize("name", SCHEDULES)


@every_schedule
def test_schedules_follow_their_formulas_and_end_at_zero(name: str) -> None:
    for t in (0, 1, 3, 5, 9, 10, 11, 1000):
        found = SCHEDULES[name](torch.tensor(t))
        assert found.shape == ()
        assert found.item() == pytest.approx(FACTORS[name](t), abs=1e-15)
        assert 0 <= found.item() <= 1


@every_schedule
def test_schedules_take_many_rounds_pickle_and_have_names(name: Any) -> None:
    rounds = torch.arange(-1, 14)
    found = SCHEDULES[name](rounds)
    assert_close(vmap(SCHEDULES[name])(rounds), found, 1e-15)
    assert_close(pickle.loads(pickle.dumps(SCHEDULES[name]))(rounds), found, 0)
    assert_close(schedule(name, 10)(rounds), found, 0)
    assert found[0] == found[1] == 1


@every_schedule
def test_factors_are_double_unless_the_round_is_a_float(name: str) -> None:
    assert SCHEDULES[name](torch.tensor(3)).dtype == torch.float64
    assert SCHEDULES[name](torch.tensor(3.0)).dtype == torch.float32


def test_a_constant_schedule_needs_no_rounds_and_changes_no_step() -> None:
    rate = 0.1 * schedule("constant")(torch.tensor(7))
    assert_close(run(sgd(rate), draw(1), 5), run(sgd(0.1), draw(1), 5), 1e-15)  # rounded once less


def scheduled(
    number: Tensor, along: Params, state: tuple[Tree, ...], params: Params
) -> tuple[Params, tuple[Tree, ...]]:
    """One step of each kind after the other, at rates that fall with the rounds."""
    rates = [0.1 * factor(number) for factor in SCHEDULES.values()]
    after = []
    for optimizer, own in zip(
        (sgd(rates[0], 0.9, True), adamw(rates[1]), yogi(rates[2])), state, strict=True
    ):
        params, new = optimizer.update(along, own, params)
        after.append(new)
    return params, tuple(after)


def test_compiled_vectorized_steps_equal_eager_ones() -> None:
    params, along = draw(1, 3, dtype=torch.float32), draw(2, 3, dtype=torch.float32)
    rounds = torch.tensor([0, 4, 12])
    state = tuple(vmap(o.init)(params) for o in (sgd(0.1, 0.9, True), adamw(0.1), yogi(0.1)))
    step = vmap(scheduled)
    eager = step(rounds, along, state, params)
    assert {leaf.dtype for leaf in trees.leaves(eager)} == {torch.float32}
    assert_close(
        torch.compile(step, fullgraph=True, backend="aot_eager")(rounds, along, state, params),
        eager,
        1e-6,
    )
