"""Every use of what torch does not promise to keep: private functions, patches, versions, warnings.

Each function says what it uses, why torch's public functions do not do, and what happens if another
torch lacks it:

- What is merely missing is replaced at import, by public operations or by a safe answer.
- Steps are traced and compiled only by a tested torch (`is_torch_tested`), else run eagerly.

All but the compiler is looked up once, at import, since some functions are called for every
operation on a tree.
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
"""Takes an operation, its positional and its named arguments, and returns the result."""

TESTED_TORCH = ((2, 11), (2, 13))
"""Releases of torch, major and minor, that the tests have passed with, the newest last."""


# Versions


def is_torch_tested() -> bool:
    """Return whether this torch is one of the releases in `TESTED_TORCH`, with any patch level.

    Any other torch traces and compiles no steps: bugs of Inductor are silent, and new ones unknown.

    Uses: `torch.__version__`, which is public. Tested with torch 2.11 and 2.13.
    If unavailable: a version without major and minor number counts as not tested.
    """
    version = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    if version is None:
        return False
    return (int(version[1]), int(version[2])) in TESTED_TORCH


def describe_tested_torch() -> str:
    """Return which torch compiles steps, which one this is, and how to get one that does.

    Uses: `torch.__version__`, which is public. Tested with torch 2.11 and 2.13.
    """
    releases = [f"{major}.{minor}" for major, minor in TESTED_TORCH]
    return (
        f"steps are compiled only with torch {' or '.join(releases)}, which are tested, "
        f"and this is torch {torch.__version__}; "
        f"to compile them: pip install 'torch=={releases[-1]}.*'"
    )


def _find(path: str, default: Any) -> Any:
    """Return the object of torch at MODULE:NAME, or `default` if there is none."""
    try:
        return resolve_name(path)
    except (ImportError, AttributeError):
        return default


# Trees


def flatten_tree(tree: Any) -> list[Any]:
    """Return the leaves of nested dicts, lists and tuples, in a fixed order.

    Uses: `torch.utils._pytree.tree_leaves`, private. Tested with torch 2.11 and 2.13.
    Works around: torch has no public function for nested containers.
    If unavailable: the tree is walked in Python; anything but a dict, list or tuple is a leaf.
    """
    return _tree_leaves(tree)


def map_tree(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply `function` leaf by leaf to `tree`, or to it and `others` of the same structure.

    Uses: `torch.utils._pytree.tree_map`, private. Tested with torch 2.11 and 2.13.
    Works around: torch has no public function for nested containers.
    If unavailable: the tree is walked in Python; anything but a dict, list or tuple is a leaf.
    """
    return _tree_map(function, tree, *others)


def list_leaf_paths(tree: Any) -> list[tuple[str, ...]]:
    """Return the names and positions that lead to each leaf, in the order of `flatten_tree`.

    Uses: `torch.utils._pytree.tree_flatten_with_path`, private. Tested with torch 2.11 and 2.13.
    Works around: torch has no public function for nested containers.
    If unavailable: the tree is walked in Python; anything but a dict, list or tuple is a leaf.
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
    """Return what `flatten_tree` does, without torch."""
    members = _list_members(tree)
    if members is None:
        return [tree]
    leaves = []
    for member in members.values():
        leaves += _list_leaves(member)
    return leaves


def _list_leaf_paths(tree: Any) -> list[tuple[str, ...]]:
    """Return what `list_leaf_paths` does, without torch."""
    members = _list_members(tree)
    if members is None:
        return [()]
    paths = []
    for name, member in members.items():
        for path in _list_leaf_paths(member):
            paths.append((str(name), *path))
    return paths


def _map_leaves(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return what `map_tree` does, without torch."""
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
        copied = copy.copy(tree)  # of the same class, such as OrderedDict
        copied.update(mapped)
        return copied
    if hasattr(tree, "_fields"):
        return type(tree)(*mapped.values())
    return type(tree)(mapped.values())


_tree_leaves: Callable[..., list[Any]] = _find("torch.utils._pytree:tree_leaves", _list_leaves)
_tree_map: Callable[..., Any] = _find("torch.utils._pytree:tree_map", _map_leaves)
_tree_flatten_with_path: Callable[..., Any] | None = _find(
    "torch.utils._pytree:tree_flatten_with_path",
    None,
)


# Operations on lists of tensors


def add_lists(a: list[Tensor], b: list[Tensor], alpha: float) -> Sequence[Tensor]:
    """Return a + alpha * b for each pair of tensors of the lists `a` and `b`.

    Uses: `torch._foreach_add`, private. Tested with torch 2.11 and 2.13.
    Works around: an operation per tensor, which dominates the time for small tensors.
    If unavailable: pairs are added one by one, with the same numbers.
    """
    return _foreach_add(a, b, alpha=alpha)


def sub_lists(a: list[Tensor], b: list[Tensor]) -> Sequence[Tensor]:
    """Return a - b for each pair of tensors of the lists `a` and `b`.

    Uses: `torch._foreach_sub`, private. Tested with torch 2.11 and 2.13.
    Works around: an operation per tensor, which dominates the time for small tensors.
    If unavailable: pairs are subtracted one by one, with the same numbers.
    """
    return _foreach_sub(a, b)


def scale_list(tensors: list[Tensor], factor: float) -> Sequence[Tensor]:
    """Return each tensor times `factor`.

    Uses: `torch._foreach_mul`, private. Tested with torch 2.11 and 2.13.
    Works around: an operation per tensor, which dominates the time for small tensors.
    If unavailable: tensors are scaled one by one, with the same numbers.
    """
    return _foreach_mul(tensors, factor)


def sum_magnitudes(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the sum of the absolute values of each tensor.

    Uses: `torch._foreach_norm`, private. Tested with torch 2.11 and 2.13.
    Works around: an operation per tensor, which dominates the time for small tensors.
    If unavailable: tensors are summed one by one, with the same numbers up to rounding.
    """
    return _foreach_norm(tensors, 1)


def copy_lists(buffers: list[Tensor], values: list[Tensor]) -> None:
    """Copy each of `values` into its buffer.

    Uses: `torch._foreach_copy_`, private. Tested with torch 2.11 and 2.13.
    Works around: an operation per tensor, which dominates the time for small tensors.
    If unavailable: tensors are copied one by one.
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
    """Return whether `vmap`, `grad` or another transform of `torch.func` is being applied.

    Uses: `torch._C._functorch.peek_interpreter_stack`, private. Tested with torch 2.11 and 2.13.
    Works around: operations on lists and torch's own LSTM have no rules for transforms.
    If unavailable: one is assumed, so tensors are added one by one and LSTMs run step by step.
    """
    return _peek_interpreter_stack() is not None


def is_tracing() -> bool:
    """Return whether operations are being recorded in a graph.

    Uses: `torch.fx.experimental.proxy_tensor.get_proxy_mode`, experimental. Tested with torch 2.11
        and 2.13.
    Works around: graphs for Inductor need some operations written in another way.
    If unavailable: only traces by `record_operations` are noticed.
    """
    return _get_proxy_mode() is not None


_is_recording: ContextVar[bool] = ContextVar("is_recording", default=False)


def _get_own_recording() -> object:
    """Return None outside of `record_operations`, where torch does not say what it is doing."""
    return True if _is_recording.get() else None


_peek_interpreter_stack: Callable[[], object] = _find(
    "torch._C._functorch:peek_interpreter_stack",
    lambda: True,
)
_get_proxy_mode: Callable[[], object] = _find(
    "torch.fx.experimental.proxy_tensor:get_proxy_mode",
    _get_own_recording,
)


# Tracing


def can_record_operations() -> bool:
    """Return whether functions can be traced by `record_operations`.

    Uses: `torch.fx.experimental.proxy_tensor.make_fx`, experimental. Tested with torch 2.11 and
        2.13.
    If unavailable, or if this torch is not tested: False, and functions are called as they are.
    """
    return _make_fx is not None and is_torch_tested()


def record_operations(
    function: Callable[..., Any],
    leaves: Sequence[Tensor],
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
) -> GraphModule:
    """Trace a function of tensors into the graph of its operations, without executing them.

    Uses: `torch.fx.experimental.proxy_tensor.make_fx`, experimental, with its private argument for
        constants of the function. Tested with torch 2.11 and 2.13.
    Works around: torch has no stable function that traces through `vmap` and `grad`.
    If unavailable, or if this torch is not tested: a RuntimeError says so, so ask
        `can_record_operations` first.

    Args:
        function: Function of tensors.
        leaves: Tensors whose shapes and dtypes the graph is for; they are not read.
        decompositions: Functions that replace operations in the graph.
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
    """Return whether `intercept_operations` sees operations.

    Uses: `torch.utils._python_dispatch.TorchDispatchMode`, private. Tested with torch 2.11 and
        2.13.
    If unavailable: False.
    """
    return _DispatchMode is not object


def intercept_operations(handle: OperationHandler) -> AbstractContextManager[object]:
    """Return a context in which `handle` executes every operation, also those of derivatives.

    Uses: `torch.utils._python_dispatch.TorchDispatchMode`, private. Tested with torch 2.11 and
        2.13.
    Works around: torch's public modes do not see the operations that derivatives consist of.
    If unavailable: operations run without `handle`, so ask `can_intercept_operations` first.
    """
    if not can_intercept_operations():
        return nullcontext()
    interceptor: AbstractContextManager[object] = _Interceptor(handle)
    return interceptor


_DispatchMode: Any = _find("torch.utils._python_dispatch:TorchDispatchMode", object)


class _Interceptor(_DispatchMode):  # type: ignore[misc]
    """Mode that passes every operation to a function."""

    def __init__(self, handle: OperationHandler) -> None:
        super().__init__()
        self._handle = handle

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._handle(func, args, kwargs or {})


def list_argument_names(operation: Any) -> list[str]:
    """Return the names of an operation's arguments, in their order.

    Uses: `OpOverload._schema`, private. Tested with torch 2.11 and 2.13.
    Works around: torch has no public way to list the arguments of an operation.
    If unavailable: there are no names, and an operation that may draw counts as one that does.
    """
    schema = getattr(operation, "_schema", None)
    if schema is None:
        return []
    return [argument.name for argument in schema.arguments]


def identify_storage(storage: torch.UntypedStorage) -> int:
    """Return a number that no other living storage has.

    Uses: `UntypedStorage._cdata`, private. Tested with torch 2.11 and 2.13.
    Works around: the public address of the data, which all storages without data share.
    If unavailable: that address.
    """
    return _get_storage_id(storage)


_get_storage_id: Callable[[torch.UntypedStorage], int] = torch.UntypedStorage.data_ptr
if _find("torch:UntypedStorage._cdata", None) is not None:
    _get_storage_id = operator.attrgetter("_cdata")


# Layers

_BatchNormLayer = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


def is_batch_norm(module: object) -> TypeGuard[_BatchNormLayer]:
    """Return whether a module is a batch norm of any kind.

    Uses: `torch.nn.modules.batchnorm._BatchNorm`, private. Tested with torch 2.11 and 2.13.
    Works around: torch's batch norms have no public base class.
    If unavailable: classes of other projects that derive from that base class are not recognized.
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


def get_tensor_dicts(module: nn.Module) -> tuple[dict[str, Any], ...]:
    """Return the dicts from which a layer reads its own parameters and its own buffers, by name.

    Uses: `Module._parameters` and `Module._buffers`, private. Tested with torch 2.11 and 2.13.
    Works around: `torch.func.functional_call` looks up every tensor anew in every call.
    If unavailable: no dicts, and the caller uses that function.
    """
    try:
        return module._parameters, module._buffers
    except AttributeError:
        return ()


def run_fused_lstm_cell(
    inputs: Tensor,
    recurrent: Tensor,
    cell: Tensor,
) -> tuple[Tensor, ...] | None:
    """Return hidden state, cell and gates after a time step of an LSTM, by one kernel on a GPU.

    Uses: `aten._thnn_fused_lstm_cell`, private. Tested with torch 2.11 and 2.13.
    Works around: a dozen elementwise operations per time step, in a stack of clients for which
        torch's public LSTM has no rule.
    If unavailable: None, and the caller computes the formula.

    Args:
        inputs: Part of the gates' pre-activations that comes from the inputs, [rows, 4 hidden].
        recurrent: Part of them that comes from the old hidden state, [rows, 4 hidden].
        cell: Old cell, [rows, hidden].
    """
    if _fused_lstm_cell is None:
        return None
    outputs: tuple[Tensor, ...] = _fused_lstm_cell(inputs, recurrent, cell)
    return outputs


def run_fused_lstm_cell_backward(
    grad_hidden: Tensor, grad_cell: Tensor, old_cell: Tensor, new_cell: Tensor, gates: Tensor
) -> tuple[Tensor, ...] | None:
    """Return the gradients w.r.t. pre-activations and old cell, by one kernel on a GPU.

    Uses: `aten._thnn_fused_lstm_cell_backward_impl`, private. Tested with torch 2.11 and 2.13.
    Works around: a dozen elementwise operations per time step, in a stack of clients for which
        torch's public LSTM has no rule.
    If unavailable: None, and the caller computes the formula.

    Args:
        grad_hidden: Gradient w.r.t. the new hidden state, [rows, hidden].
        grad_cell: Gradient w.r.t. the new cell, [rows, hidden].
        old_cell: Cell before the time step, [rows, hidden].
        new_cell: Cell that `run_fused_lstm_cell` returned, [rows, hidden].
        gates: Gates that `run_fused_lstm_cell` returned, [rows, 4 hidden].
    """
    if _fused_lstm_cell_backward is None:
        return None
    has_bias = False
    grads = _fused_lstm_cell_backward(grad_hidden, grad_cell, old_cell, new_cell, gates, has_bias)
    grad_preacts, grad_old_cell, _ = grads
    return grad_preacts, grad_old_cell


_fused_lstm_cell: Any = _find("torch:ops.aten._thnn_fused_lstm_cell", None)
_fused_lstm_cell_backward: Any = _find(
    "torch:ops.aten._thnn_fused_lstm_cell_backward_impl",
    None,
)


@contextmanager
def without_onednn() -> Iterator[None]:
    """Disable oneDNN inside the context, for the whole process.

    Uses: `torch.backends.mkldnn.enabled`, public, but set against its annotated type. Tested with
        torch 2.11 and 2.13.
    Works around: oneDNN's LSTM has no rule for the derivative of its gradient.
    If unavailable: an AttributeError.
    """
    was_enabled = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = was_enabled


# Compiling


def mark_constant(function: Function) -> Function:
    """Let torch.compile call a function while it compiles, and use its result as a constant.

    Uses: `_dynamo_marked_constant`, the private attribute that
        `torch.compiler.assume_constant_result` sets. Tested with torch 2.11 and 2.13.
    Works around: that public function imports the compiler, which takes seconds.
    If unavailable: the attribute is not read, and torch.compile compiles the function itself.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def get_default_cache_dir() -> str | None:
    """Return torch's default folder for compiled code, or None before its compiler is imported.

    Uses: `torch._inductor.runtime.cache_dir_utils.default_cache_dir`, private. Tested with torch
        2.11 and 2.13.
    Works around: as soon as torch's compiler is imported, it sets TORCHINDUCTOR_CACHE_DIR to that
        folder, which then looks like a choice of the user.
    If unavailable: None, and the variable counts as set by the user.
    """
    module = sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    get_dir: Callable[[], str] | None = getattr(module, "default_cache_dir", None)
    if get_dir is None:
        return None
    return get_dir()


def compile_graph(graph: GraphModule, leaves: Sequence[Tensor]) -> Callable[..., object]:
    """Compile a graph for tensors of the shapes of `leaves`; torch caches parts of it on disk.

    Uses: `torch._inductor.compile`, `torch._guards` and fake tensors, private. Tested with torch
        2.11 and 2.13.
    Works around: `torch.compile` checks its arguments at each call.
    If unavailable, or if this torch is not tested: a RuntimeError, or what torch itself raises; the
        caller then runs steps uncompiled.
    """
    if not is_torch_tested():
        raise RuntimeError(describe_tested_torch())
    import torch._inductor  # not at the top, since it takes seconds
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # With a shape environment torch caches the code on disk, and with static shapes it is fast.
    fake_mode = FakeTensorMode(shape_env=ShapeEnv())
    with tracing(TracingContext(fake_mode)):
        fakes: list[Any] = [fake_mode.from_tensor(leaf, static_shapes=True) for leaf in leaves]
        code: Callable[..., object] = torch._inductor.compile(graph, fakes)
    return code


def teach_decomposition(operation: Any, function: Callable[..., Any]) -> None:
    """Register a function as the decomposition of an operation by Inductor.

    Uses: `torch._inductor.decomposition`, private. Tested with torch 2.11 and 2.13.
    Works around: torch has no public way to add a decomposition, and Inductor caches all of them
        when it first needs one.
    If unavailable: what torch raises is left to the caller, who then runs steps uncompiled.
    """
    from torch._inductor import decomposition

    decomposition.decompositions.setdefault(operation, function)
    decomposition.fast_random_decomps.cache_clear()


@cache
def patch_write_order() -> None:
    """Patch Inductor of torch before 2.13 to remember what must be read before it is overwritten.

    Uses: `torch._inductor.scheduler.SchedulerNode.recompute_size_and_body`, private, which is
        replaced. Tested with torch 2.11, which needs it, and 2.13, which is left alone.
    Works around: Inductor forgets these reads wherever it reorders a loop for CPUs to fuse it with
        another one. Weights may then be new before the last product with the old ones, which makes
        the numbers wrong.
    If unavailable: what torch raises is left to the caller, who then runs steps uncompiled.
    """
    if torch.__version__ >= "2.13":  # a TorchVersion, which compares part by part
        return
    from torch._inductor.dependencies import StarDep, WeakDep
    from torch._inductor.scheduler import SchedulerNode

    original: Any = SchedulerNode.recompute_size_and_body

    def recompute_and_remember(self: Any, *args: Any, **kwargs: Any) -> None:
        reads = self.read_writes.reads
        forgotten = [dep for dep in reads if isinstance(dep, WeakDep | StarDep)]
        original(self, *args, **kwargs)
        if forgotten:
            read_set = type(self.read_writes.reads)
            self.set_read_writes(self.read_writes.with_read(read_set(forgotten)))

    SchedulerNode.recompute_size_and_body = recompute_and_remember  # type: ignore[method-assign]


# Warnings


@contextmanager
def silence_speed_warnings() -> Iterator[None]:
    """Ignore torch's warnings about its own speed inside the context.

    Uses: the wording of the warnings. Tested with torch 2.11 and 2.13.
    Works around: users can do nothing about them; operations without rules for `vmap` are in the
        notes of an engine (see `record_vmap_fallbacks`).
    If torch changes the wording: the warnings are shown.
    """
    with warnings.catch_warnings():
        for message in _SPEED_WARNINGS:
            warnings.filterwarnings("ignore", message, UserWarning)
        yield


@contextmanager
def silence_read_only_warning() -> Iterator[None]:
    """Ignore inside the context that a NumPy array is not writable; it must not be written to.

    Uses: the wording of the warning. Tested with torch 2.11 and 2.13.
    Works around: torch has no read-only tensors and warns of such arrays.
    If torch changes the wording: the warning is shown.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        yield


@contextmanager
def record_vmap_fallbacks() -> Iterator[set[str]]:
    """Yield a set that holds, after the context, the operations that `vmap` has no rule for.

    Warnings inside the context are not shown, whatever filters the caller has set.

    Uses: the wording of torch's warning. Tested with torch 2.11 and 2.13.
    Works around: torch has no other way to tell which operations run client by client.
    If torch changes the wording: the set stays empty.
    """
    operations = set[str]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield operations
        finally:
            for warning in caught:
                match = re.search(r"batching rule for (\S+?)\. ", str(warning.message))
                if match is not None:
                    operations.add(match[1])


_SPEED_WARNINGS = (
    "There is a performance drop",
    "\\s*Online softmax is disabled",
    "TensorFloat32 tensor cores",
)
"""Beginnings of the warnings that `silence_speed_warnings` ignores."""
