"""Every use of what torch keeps to itself: private functions, its versions, patches and warnings.

Tested with torch 2.11 and 2.13. In another torch private parts may be gone or mean something else:

- What is merely missing is replaced at import, by public operations or by a safe answer.
- Steps are recorded and compiled by a tested torch alone (`is_torch_tested`), else run as they are.

All but the compiler is looked up once, at import: some is called for every operation on a tree.
"""

import copy
import operator
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from pkgutil import resolve_name
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

Function = TypeVar("Function", bound=Callable[..., Any])

OperationHandler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Does an operation, given it, its arguments and those with names, and returns the result."""

TESTED_TORCH = ((2, 11), (2, 13))
"""The oldest and the newest release of torch, major and minor, that the tests have passed with."""


# Versions


def is_torch_tested() -> bool:
    """Tell whether this torch is between the oldest and the newest release in `TESTED_TORCH`.

    Another one records and compiles no steps: Inductor's faults are silent, and new ones unknown.
    """
    found = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    if found is None:
        return False
    oldest, newest = TESTED_TORCH
    return oldest <= (int(found[1]), int(found[2])) <= newest


def describe_tested_torch() -> str:
    """Say which torch compiles steps, which one this is, and how to get one that does."""
    (major, oldest), (_, newest) = TESTED_TORCH
    return (
        f"steps are compiled with torch {major}.{oldest} to {major}.{newest}, which are tested, "
        f"and this is torch {torch.__version__}; to compile them: "
        f"pip install 'torch>={major}.{oldest},<{major}.{newest + 1}'"
    )


def _find(path: str, default: Any) -> Any:
    """Return something private of torch by its MODULE:NAME, or what stands in for it."""
    try:
        return resolve_name(path)
    except (ImportError, AttributeError):
        return default


# Trees


def flatten_tree(tree: Any) -> list[Any]:
    """Return the leaves of nested dicts, lists and tuples, in a fixed order.

    Private: `torch.utils._pytree`, tested with torch 2.11 and 2.13.
    Where it is missing, dicts, lists and tuples are gone through here, and all else is a leaf.
    """
    return _tree_leaves(tree)


def map_tree(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function leaf by leaf to one tree or to several of the same shape.

    Private: `torch.utils._pytree`, tested with torch 2.11 and 2.13.
    Where it is missing, dicts, lists and tuples are gone through here, and all else is a leaf.
    """
    return _tree_map(function, tree, *others)


def list_leaf_paths(tree: Any) -> list[tuple[str, ...]]:
    """Return the names and positions that lead to each leaf, in the order of `flatten_tree`.

    Private: `torch.utils._pytree`, tested with torch 2.11 and 2.13.
    Where it is missing, dicts, lists and tuples are gone through here, and all else is a leaf.
    """
    if _tree_flatten_with_path is None:
        return _list_leaf_paths(tree)
    pairs, _ = _tree_flatten_with_path(tree)
    return [tuple(_name_step(step) for step in path) for path, _ in pairs]


def _name_step(step: Any) -> str:
    """Return the name or the position of one step of a path."""
    for attribute in ("key", "idx", "name"):
        if hasattr(step, attribute):
            return str(getattr(step, attribute))
    return str(step)


def _list_members(tree: Any) -> dict[Any, Any] | None:
    """Return the members of a node by name or position, or None for a leaf."""
    if isinstance(tree, dict):
        return tree
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return dict(zip(tree._fields, tree, strict=True))
    if isinstance(tree, list | tuple):
        return dict(enumerate(tree))
    return None


def _list_leaves(tree: Any) -> list[Any]:
    """Return the leaves of a tree without torch's help."""
    members = _list_members(tree)
    if members is None:
        return [tree]
    return [leaf for member in members.values() for leaf in _list_leaves(member)]


def _list_leaf_paths(tree: Any) -> list[tuple[str, ...]]:
    """Return the paths to the leaves of a tree without torch's help."""
    members = _list_members(tree)
    if members is None:
        return [()]
    below = [(str(name), _list_leaf_paths(member)) for name, member in members.items()]
    return [(name, *path) for name, paths in below for path in paths]


def _map_leaves(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function leaf by leaf without torch's help."""
    members = _list_members(tree)
    if members is None:
        return function(tree, *others)
    other_members = [_list_members(other) or {} for other in others]
    if any(each.keys() != members.keys() for each in other_members):
        raise ValueError(f"Node mismatch: trees differ below a {type(tree).__name__}.")
    mapped = {}
    for name, member in members.items():
        mapped[name] = _map_leaves(function, member, *(each[name] for each in other_members))
    if isinstance(tree, dict):
        new = copy.copy(tree)
        new.update(mapped)
        return new
    return type(tree)(*mapped.values()) if hasattr(tree, "_fields") else type(tree)(mapped.values())


_tree_leaves: Callable[..., list[Any]] = _find("torch.utils._pytree:tree_leaves", _list_leaves)
_tree_map: Callable[..., Any] = _find("torch.utils._pytree:tree_map", _map_leaves)
_tree_flatten_with_path: Callable[..., Any] | None = _find(
    "torch.utils._pytree:tree_flatten_with_path",
    None,
)


# Operations on lists of tensors


def add_lists(a: list[Tensor], b: list[Tensor], alpha: float) -> Sequence[Tensor]:
    """Return a + alpha b for each pair of tensors, in few operations.

    Private: `torch._foreach_add`, tested with torch 2.11 and 2.13.
    Where it is missing, pair by pair, with the same numbers.
    """
    return _foreach_add(a, b, alpha=alpha)


def sub_lists(a: list[Tensor], b: list[Tensor]) -> Sequence[Tensor]:
    """Return a - b for each pair of tensors, in few operations.

    Private: `torch._foreach_sub`, tested with torch 2.11 and 2.13.
    Where it is missing, pair by pair, with the same numbers.
    """
    return _foreach_sub(a, b)


def scale_list(tensors: list[Tensor], factor: float) -> Sequence[Tensor]:
    """Return each tensor times a factor, in few operations.

    Private: `torch._foreach_mul`, tested with torch 2.11 and 2.13.
    Where it is missing, one by one, with the same numbers.
    """
    return _foreach_mul(tensors, factor)


def sum_magnitudes(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the sum of the absolute values of each tensor, in few operations.

    Private: `torch._foreach_norm`, tested with torch 2.11 and 2.13.
    Where it is missing, one by one, with the same numbers up to rounding.
    """
    return _foreach_norm(tensors, 1)


def copy_lists(buffers: list[Tensor], values: list[Tensor]) -> None:
    """Copy each value into its buffer, in few operations.

    Private: `torch._foreach_copy_`, tested with torch 2.11 and 2.13.
    Where it is missing, one by one, with the same numbers.
    """
    _foreach_copy(buffers, values)


def _add_each(a: list[Tensor], b: list[Tensor], *, alpha: float) -> list[Tensor]:
    return [torch.add(x, y, alpha=alpha) for x, y in zip(a, b, strict=True)]


def _sub_each(a: list[Tensor], b: list[Tensor]) -> list[Tensor]:
    return [torch.sub(x, y) for x, y in zip(a, b, strict=True)]


def _scale_each(tensors: Sequence[Tensor], factor: float) -> list[Tensor]:
    return [torch.mul(each, factor) for each in tensors]


def _norm_each(tensors: Sequence[Tensor], order: float) -> list[Tensor]:
    return [torch.linalg.vector_norm(each, order) for each in tensors]


def _copy_each(buffers: list[Tensor], values: list[Tensor]) -> None:
    for buffer, value in zip(buffers, values, strict=True):
        buffer.copy_(value)


_foreach_add: Callable[..., Sequence[Tensor]] = _find("torch:_foreach_add", _add_each)
_foreach_sub: Callable[..., Sequence[Tensor]] = _find("torch:_foreach_sub", _sub_each)
_foreach_mul: Callable[..., Sequence[Tensor]] = _find("torch:_foreach_mul", _scale_each)
_foreach_norm: Callable[..., Sequence[Tensor]] = _find("torch:_foreach_norm", _norm_each)
_foreach_copy: Callable[..., object] = _find("torch:_foreach_copy_", _copy_each)


# What torch is doing


def is_functorch_active() -> bool:
    """Tell whether `vmap`, `grad` or another transform of `torch.func` is being applied.

    Operations on lists and torch's own LSTM have no rules for those.
    Private: `torch._C._functorch.peek_interpreter_stack`, tested with torch 2.11 and 2.13.
    Where it is missing, one is assumed: tensors are added one by one, and LSTMs go place by place.
    """
    return _peek_interpreter_stack() is not None


def is_tracing() -> bool:
    """Tell whether what is done now is being recorded as a list of operations.

    Private: `torch.fx.experimental.proxy_tensor.get_proxy_mode`, tested with torch 2.11 and 2.13.
    Where it is missing, only recordings by `record_operations` are known of.
    """
    return _get_proxy_mode() is not None


_is_recording: ContextVar[bool] = ContextVar("is_recording", default=False)


def _get_own_recording() -> object:
    """Return something inside `record_operations`, else None."""
    return _is_recording.get() or None


_peek_interpreter_stack: Callable[[], object] = _find(
    "torch._C._functorch:peek_interpreter_stack",
    lambda: True,
)
_get_proxy_mode: Callable[[], object] = _find(
    "torch.fx.experimental.proxy_tensor:get_proxy_mode",
    _get_own_recording,
)


# Recording


def can_record_operations() -> bool:
    """Tell whether functions can be recorded as lists of operations.

    Where they cannot, since `make_fx` is missing or torch is not tested, they are run as they are.
    """
    return _make_fx is not None and is_torch_tested()


def record_operations(
    function: Callable[..., Any],
    leaves: Sequence[Tensor],
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
) -> GraphModule:
    """Return the operations that a function of tensors comes down to, found without doing them.

    Operations that have a decomposition are recorded as what that does.

    Private: `torch.fx.experimental.proxy_tensor.make_fx`, tested with torch 2.11 and 2.13.
    Where that cannot be used, a RuntimeError says so: ask `can_record_operations` first.
    """
    if _make_fx is None or not is_torch_tested():
        raise RuntimeError(describe_tested_torch())
    token = _is_recording.set(True)
    try:
        record = _make_fx(
            function, decompositions, tracing_mode="fake", _allow_non_fake_inputs=True
        )
        graph: GraphModule = record(*leaves)
    finally:
        _is_recording.reset(token)
    return graph


_make_fx: Callable[..., Any] | None = _find("torch.fx.experimental.proxy_tensor:make_fx", None)


# Looking at operations


def can_intercept_operations() -> bool:
    """Tell whether this torch has a hook for `intercept_operations`."""
    return _DispatchMode is not object


def intercept_operations(handle: OperationHandler) -> AbstractContextManager[object]:
    """Return a context in which `handle` does every operation, down to those of derivatives.

    Private: `torch.utils._python_dispatch.TorchDispatchMode`, tested with torch 2.11 and 2.13.
    Where it is missing, operations do not pass `handle`: ask `can_intercept_operations` first.
    """
    return _Interceptor(handle) if can_intercept_operations() else nullcontext()


_DispatchMode: Any = _find("torch.utils._python_dispatch:TorchDispatchMode", object)


class _Interceptor(_DispatchMode):  # type: ignore[misc]
    """Hands every operation to a function."""

    def __init__(self, handle: OperationHandler) -> None:
        super().__init__()
        self._handle = handle

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._handle(func, args, kwargs or {})


def list_argument_names(operation: Any) -> list[str]:
    """Return the names of an operation's arguments, in their order.

    Private: `OpOverload._schema`, tested with torch 2.11 and 2.13.
    Where it is missing, there are none: an operation that may draw then counts as one that does.
    """
    schema = getattr(operation, "_schema", None)
    return [] if schema is None else [argument.name for argument in schema.arguments]


def identify_storage(storage: torch.UntypedStorage) -> int:
    """Return a number that no other living storage has.

    Private: `UntypedStorage._cdata`, tested with torch 2.11 and 2.13.
    Where it is missing, the address of the data, which only storages without data share.
    """
    return _get_storage_id(storage)


_get_storage_id: Callable[[torch.UntypedStorage], int] = torch.UntypedStorage.data_ptr
if _find("torch:UntypedStorage._cdata", None) is not None:
    _get_storage_id = operator.attrgetter("_cdata")


# Layers

_BatchNormLayer = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


def is_batch_norm(module: object) -> TypeGuard[_BatchNormLayer]:
    """Tell whether a module is a batch norm of any kind.

    Private: `torch.nn.modules.batchnorm._BatchNorm`, tested with torch 2.11 and 2.13.
    Where it is missing, batch norms of other projects that derive from it alone are not known.
    """
    return isinstance(module, _BATCH_NORMS)


_BATCH_NORMS: tuple[type, ...] = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.LazyBatchNorm1d,
    nn.LazyBatchNorm2d,
    nn.LazyBatchNorm3d,
    _find("torch.nn.modules.batchnorm:_BatchNorm", nn.BatchNorm1d),
)


def run_fused_lstm_cell(
    inputs: Tensor,
    recurrent: Tensor,
    cell: Tensor,
) -> tuple[Tensor, ...] | None:
    """Return the state, the cell and the opened gates of an LSTM's cell, by one kernel of a GPU.

    Private: `aten._thnn_fused_lstm_cell`, tested with torch 2.11 and 2.13.
    Where it is missing, None: the caller has the formula.
    """
    if _fused_lstm_cell is None:
        return None
    found: tuple[Tensor, ...] = _fused_lstm_cell(inputs, recurrent, cell)
    return found


def run_fused_lstm_cell_backward(
    grad_hidden: Tensor, grad_cell: Tensor, old_cell: Tensor, new_cell: Tensor, gates: Tensor
) -> tuple[Tensor, ...] | None:
    """Return the gradient of such a cell by the gates' sums and by the old cell, by one kernel.

    Private: `aten._thnn_fused_lstm_cell_backward_impl`, tested with torch 2.11 and 2.13.
    Where it is missing, None: the caller has the formula.
    """
    if _fused_lstm_cell_backward is None:
        return None
    found = _fused_lstm_cell_backward(grad_hidden, grad_cell, old_cell, new_cell, gates, False)
    return tuple(found[:2])


_fused_lstm_cell: Any = _find("torch:ops.aten._thnn_fused_lstm_cell", None)
_fused_lstm_cell_backward: Any = _find(
    "torch:ops.aten._thnn_fused_lstm_cell_backward_impl",
    None,
)


@contextmanager
def without_onednn() -> Iterator[None]:
    """Have torch do without oneDNN inside, whose LSTM has no rule for a derivative of its gradient.

    Public, but set past torch's types, and for the whole process. Tested with torch 2.11 and 2.13.
    """
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


# Compiling


def mark_constant(function: Function) -> Function:
    """Have torch.compile call a function while it looks at the code, and keep only its result.

    Private: what `torch.compiler.assume_constant_result` sets, tested with torch 2.11 and 2.13.
    That one would import the compiler, which takes seconds.
    Where it is not known, it is an attribute that is not read, and such code is looked at in full.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def get_default_cache_dir() -> str | None:
    """Return where torch keeps compiled code unless it is told where; None while it has not said.

    As soon as torch's compiler is imported it sets TORCHINDUCTOR_CACHE_DIR to that by itself.
    Private: `torch._inductor.runtime.cache_dir_utils`, tested with torch 2.11 and 2.13.
    Where it is missing, None: the variable then counts as set by the user.
    """
    module = sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    get_dir: Callable[[], str] | None = getattr(module, "default_cache_dir", None)
    return None if get_dir is None else get_dir()


def compile_graph(graph: GraphModule, leaves: Sequence[Tensor]) -> Callable[..., object]:
    """Return a list of operations as code of this process; torch keeps parts of it on disk.

    Private: `torch._inductor.compile` and its fake tensors, tested with torch 2.11 and 2.13.
    `torch.compile` would check at each call what it is given.
    Another torch is refused, by a RuntimeError or what it raises itself: steps then run uncompiled.
    """
    if not is_torch_tested():
        raise RuntimeError(describe_tested_torch())
    import torch._inductor  # here: it takes seconds, which others should not wait for
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # With a shape environment torch keeps the code on disk, and with static shapes it is fast.
    fake_mode = FakeTensorMode(shape_env=ShapeEnv())
    with tracing(TracingContext(fake_mode)):
        fakes: list[Any] = [fake_mode.from_tensor(leaf, static_shapes=True) for leaf in leaves]
        code: Callable[..., object] = torch._inductor.compile(graph, fakes)
    return code


def teach_decomposition(operation: Any, function: Callable[..., Any]) -> None:
    """Tell Inductor what an operation comes down to, which it asks for all of them once.

    Private: `torch._inductor.decomposition`, tested with torch 2.11 and 2.13.
    Where it is missing, what is raised is for the caller: steps then run uncompiled.
    """
    from torch._inductor import decomposition

    decomposition.decompositions.setdefault(operation, function)
    decomposition.fast_random_decomps.cache_clear()


@cache
def patch_write_order() -> None:
    """Have torch before 2.13 remember what must have been read before it is written over.

    It forgets that wherever it lays out a CPU's loop anew to join it to another.
    Weights may then be new before the last product with the old ones: the numbers are wrong.
    Private: `torch._inductor.scheduler.SchedulerNode`, which is patched.
    Tested with torch 2.11, which needs it, and 2.13, which is left alone.
    Where it is missing, what is raised is for the caller: steps then run uncompiled.
    """
    if torch.__version__ >= "2.13":  # which torch compares part by part
        return
    from torch._inductor.dependencies import StarDep, WeakDep
    from torch._inductor.scheduler import SchedulerNode

    original: Any = SchedulerNode.recompute_size_and_body

    def recompute_and_remember(self: Any, *given: Any, **named: Any) -> None:
        before = [dep for dep in self.read_writes.reads if isinstance(dep, WeakDep | StarDep)]
        original(self, *given, **named)
        if before:
            self.set_read_writes(self.read_writes.with_read(type(self.read_writes.reads)(before)))

    SchedulerNode.recompute_size_and_body = recompute_and_remember  # type: ignore[method-assign]


# Warnings


@contextmanager
def silence_speed_warnings() -> Iterator[None]:
    """Leave out what torch says of its own speed; operations without rules for `vmap` are a note.

    Tested with torch 2.11 and 2.13. Where torch words it otherwise, it is shown.
    """
    with warnings.catch_warnings():
        for message in _SPEED_WARNINGS:
            warnings.filterwarnings("ignore", message, UserWarning)
        yield


@contextmanager
def silence_read_only_warning() -> Iterator[None]:
    """Leave out that a NumPy array is not writable, where it is never written to.

    Tested with torch 2.11 and 2.13. Where torch words it otherwise, it is shown.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        yield


@contextmanager
def record_vmap_fallbacks() -> Iterator[set[str]]:
    """Yield a set of the operations that `vmap` has no rule for; it is filled at the end.

    Other warnings inside are not shown, whatever the caller does with them.
    Tested with torch 2.11 and 2.13. Where torch words it otherwise, the set stays empty.
    """
    operations = set[str]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield operations
        finally:
            for each in caught:
                if found := re.search(r"batching rule for (\S+?)\. ", str(each.message)):
                    operations.add(found[1])


_SPEED_WARNINGS = (
    "There is a performance drop",
    "\\s*Online softmax is disabled",
    "TensorFloat32 tensor cores",
)
