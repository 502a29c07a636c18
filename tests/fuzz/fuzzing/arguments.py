"""Arguments of Python functions: arrays, models, names and numbers of the wrong kind or size."""

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedtailor
from fedtailor import data as sources
from fedtailor.data import FederatedDataset
from fuzzing.cases import Case, Draws, StrategyDrawer
from fuzzing.children import WorkingError
from fuzzing.strategies import NUM_EXAMPLES, ArrayRecipe, Call, calls

NUM_FEATURES = 3
NUM_CLASSES = 3
NUM_CLIENTS = 4
MAX_WIDTH = 4096
"""Most inputs or outputs of a model that is trained on data that were accepted."""
WORK_SECONDS = 2.0
"""Seconds of CPU that are given to a call that asks for much work."""


class ArgumentTarget:
    """Calls of public functions with hostile arguments."""

    name = "arguments"

    def __init__(self) -> None:
        self._drawer = StrategyDrawer(calls())
        self._data: FederatedDataset | None = None
        self._fitted: fedtailor.FitResult | None = None
        self._personal: fedtailor.PersonalModel | None = None

    def prepare(self, folder: Path) -> None:
        """Prepare nothing: what calls need is small enough to be made at once."""

    def open(self, folder: Path) -> None:
        """Train a model, which calls personalize and predict with."""
        draws = np.random.default_rng(0)
        self._data = fedtailor.from_arrays(
            draws.normal(size=(NUM_EXAMPLES, NUM_FEATURES)).astype(np.float32),
            draws.integers(0, NUM_CLASSES, NUM_EXAMPLES),
            np.arange(NUM_EXAMPLES) % NUM_CLIENTS,
            server=4,
        )
        self._fitted = fedtailor.fit("fedsim", make_model("linear"), self._data, rounds=1, cohort=1)
        self._personal = self._fitted.personalize(
            np.zeros((NUM_CLASSES, NUM_FEATURES), np.float32), np.arange(NUM_CLASSES)
        )

    def make_case(self, draws: Draws) -> Case:
        """Return a call."""
        call: Call = self._drawer.draw(draws)
        return Case(ascii(call)[:1000], partial(self._act, call))

    def _act(self, call: Call, work: Path) -> str:
        signal.signal(signal.SIGPROF, _raise_working)
        try:
            arguments = {
                name: build_array(value) if isinstance(value, ArrayRecipe) else value
                for name, value in call.arguments.items()
            }
        except Exception:  # of NumPy or torch: there is no such array
            return "ok"
        functions: dict[str, Callable[[dict[str, Any]], object]] = {
            "from_arrays": self._make_and_train,
            "fit": self._fit,
            "load": self._load,
            "personalize": self._personalize,
            "predict": self._predict,
        }
        functions[call.function](arguments)
        return "ok"

    def _make_and_train(self, arguments: dict[str, Any]) -> None:
        data = fedtailor.from_arrays(**arguments)
        str(data.describe())
        _train(data)

    def _fit(self, arguments: dict[str, Any]) -> None:
        signal.setitimer(signal.ITIMER_PROF, WORK_SECONDS)
        options = {"rounds": 1, "cohort": 1} | arguments
        options["model"] = make_model(arguments["model"])
        if options.get("client_state_dir") is not None:
            options["client_state_dir"] = Path("states")
        assert self._data is not None
        fedtailor.fit(data=self._data, **options)

    def _load(self, arguments: dict[str, Any]) -> None:
        data = sources.load(arguments["name"], **arguments["options"])
        str(data.describe())
        if len(data.clients.x) < MAX_WIDTH:
            _train(data)

    def _personalize(self, arguments: dict[str, Any]) -> None:
        assert self._fitted is not None
        self._fitted.personalize(**arguments)

    def _predict(self, arguments: dict[str, Any]) -> None:
        assert self._personal is not None
        self._personal.predict(**arguments)


def _raise_working(number: int, frame: Any) -> None:
    raise WorkingError


def _train(data: FederatedDataset) -> None:
    """Train a linear model on data that were accepted, if it is small."""
    spec = data.example_spec
    width = int(np.prod(spec.shape))
    num_outputs = spec.classes or int(np.prod(spec.label_shape))
    if spec.tokens or spec.label_shape or max(width, num_outputs) > MAX_WIDTH:
        return
    signal.setitimer(signal.ITIMER_PROF, WORK_SECONDS)
    model = nn.Sequential(nn.Flatten(), nn.Linear(width, num_outputs))
    fedtailor.fit("fedavg", model, data, rounds=1, cohort=1, engine="sequential")


# Arrays


def build_array(recipe: ArrayRecipe) -> Any:
    """Return what a recipe describes."""
    draws = np.random.default_rng(0)
    size = int(np.prod(recipe.shape))
    usual = draws.integers(0, NUM_CLASSES, size).reshape(recipe.shape)
    array = _fill(usual, recipe)
    return _CONTAINERS[recipe.container](array)


def _fill(usual: Any, recipe: ArrayRecipe) -> Any:
    """Return an array of the recipe's type and content."""
    dtype = np.dtype(recipe.dtype)
    if dtype.kind in "US":
        return usual.astype(dtype)
    if dtype.kind == "O":
        fills: dict[str, Any] = {"nan": float("nan"), "text": "x", "highest": 2**70}
        array = usual.astype(object)
        if recipe.fill in fills and array.size:
            array.flat[0] = fills[recipe.fill]
        return array
    if dtype.kind == "M" or dtype.kind == "m":
        return usual.astype(np.int64).astype(dtype)
    array = usual.astype(dtype)
    if recipe.fill == "zeros":
        return np.zeros_like(array)
    if recipe.fill == "text":
        return array
    if array.size and recipe.fill != "usual":
        array.flat[-1] = _get_extreme(dtype, recipe.fill)
    return array


def _get_extreme(dtype: np.dtype[Any], fill: str) -> Any:
    if dtype.kind == "b":
        return True
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return {"lowest": limits.min, "negative": -1 if limits.min else 0}.get(fill, limits.max)
    finite = np.finfo(dtype)
    extremes = {"nan": np.nan, "inf": np.inf, "negative": -1, "lowest": finite.min}
    return extremes.get(fill, finite.max)


class _Subclass(np.ndarray[Any, Any]):
    """An array of another class."""


_CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "array": lambda array: array,
    "list": lambda array: array.tolist(),
    "tuple": lambda array: tuple(array.tolist()) if array.ndim else array.tolist(),
    "tensor": lambda array: _to_tensor(array),
    "fortran": np.asfortranarray,
    "read-only": lambda array: _lock(array.copy()),
    "every other": lambda array: np.repeat(array, 2, axis=0)[::2] if array.ndim else array,
    "masked": lambda array: np.ma.masked_array(array, mask=np.zeros(array.shape, bool)),
    "matrix": lambda array: array[None] if array.ndim == 1 else array,
    "meta tensor": lambda array: _to_tensor(array).to("meta"),
    "sparse tensor": lambda array: _to_tensor(array).to_sparse(),
    "bfloat16 tensor": lambda array: _to_tensor(array).to(torch.bfloat16),
    "tensor with gradient": lambda array: _to_tensor(array).double().requires_grad_(),
    "generator": lambda array: iter(array.tolist()) if array.ndim else iter(()),
    "array of arrays": lambda array: (
        np.array([*map(np.atleast_1d, array), None], object) if array.ndim else array
    ),
    "subclass": lambda array: array.view(_Subclass),
    "None": lambda array: None,
    "scalar": lambda array: array.flat[0] if array.size else 0,
}


def _to_tensor(array: Any) -> Tensor:
    """Return a tensor of the numbers in an array, of whichever type torch has for them."""
    if array.dtype.kind not in "fiub":
        array = np.zeros(array.shape, np.float32)
    native = array.astype(array.dtype.newbyteorder("="))
    return torch.as_tensor(native.astype(np.float64) if native.dtype == np.longdouble else native)


def _lock(array: Any) -> Any:
    array.flags.writeable = False
    return array


# Models


class _Custom(nn.Module):
    """A linear model whose outputs are changed by a function."""

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(NUM_FEATURES, NUM_CLASSES)
        self.change = change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.layer(x))


def _raise(*_: Any) -> Any:
    raise RuntimeError("the model's own problem")


def _linear(num_inputs: int = NUM_FEATURES, num_outputs: int = NUM_CLASSES) -> nn.Linear:
    return nn.Linear(num_inputs, num_outputs)


def _change_parameters(
    change: Callable[[Tensor], Tensor], requires_grad: bool = False
) -> nn.Module:
    model = _linear()
    for name, value in list(model.named_parameters()):
        setattr(model, name, nn.Parameter(change(value.data), requires_grad))
    return model


def _share_parameters() -> nn.Module:
    first = nn.Linear(NUM_FEATURES, NUM_FEATURES)
    return nn.Sequential(first, first, _linear())


_MODELS: dict[str, Callable[[], Any]] = {
    "linear": _linear,
    "too wide": lambda: _linear(NUM_FEATURES + 1),
    "too narrow": lambda: _linear(NUM_FEATURES, NUM_CLASSES - 1),
    "no parameters": nn.Identity,
    "meta": lambda: _linear().to("meta"),
    "raises": lambda: _Custom(_raise),
    "returns None": lambda: _Custom(lambda outputs: None),
    "returns text": lambda: _Custom(lambda outputs: "x"),
    "function": lambda: _linear,
    "function that raises": lambda: _raise,
    "class": lambda: partial(_Custom, lambda outputs: outputs),
    "task": lambda: fedtailor.classification(_linear()),
    "lazy": lambda: nn.LazyLinear(NUM_CLASSES),
    "batch norm": lambda: nn.Sequential(_linear(), nn.BatchNorm1d(NUM_CLASSES)),
    "dropout": lambda: nn.Sequential(_linear(), nn.Dropout(0.5)),
    "detached": lambda: _Custom(lambda outputs: outputs.detach()),
    "tuple output": lambda: _Custom(lambda outputs: (outputs, outputs)),
    "scalar output": lambda: _Custom(lambda outputs: outputs.sum()),
    "nan output": lambda: _Custom(lambda outputs: outputs * float("nan")),
    "double": lambda: _linear().double(),
    "half": lambda: _linear().half(),
    "integer parameters": lambda: _change_parameters(lambda value: value.to(torch.int64)),
    "complex parameters": lambda: _change_parameters(lambda value: value.to(torch.complex64), True),
    "sparse parameters": lambda: _change_parameters(lambda value: value.to_sparse(), True),
    "shared parameters": _share_parameters,
    "frozen": lambda: _linear().requires_grad_(False),
    "in place": lambda: _Custom(lambda outputs: outputs.mul_(2)),
    "random": lambda: _Custom(lambda outputs: outputs + torch.randn_like(outputs)),
    "None": lambda: None,
    "text": lambda: "mlp",
    "sequences": lambda: fedtailor.sequences(_linear()),
    "multilabel": lambda: fedtailor.multilabel(_linear()),
    "regression": lambda: fedtailor.regression(_linear()),
}


def make_model(name: str) -> Any:
    """Return a model, or what stands in its place."""
    torch.manual_seed(0)
    return _MODELS[name]()
