"""Steps of a phase for a stack of clients, in whichever of three ways is fastest:

- one client after another (`client_loop.py`), for models that are slower in stacks on a CPU;
- as programs (`compiler/step_program.py`), if steps are compiled, or captured on a GPU;
- stacked by `torch.func.vmap`, step by step, otherwise.

Clients are sorted by their number of steps and leave the stack once they have finished, so unequal
clients cost no masked steps; masks exist only inside the last batch of an epoch. Programs are made
for a few sizes of stacks only, and finished clients stay until the next smaller one is reached.
"""

import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedtailor.compiler.inductor import BoundStep, bind_compiled, bind_eager
from fedtailor.compiler.step_program import ProgramStep, StepProgram, step_stack
from fedtailor.compiler.trace import TracedFunction
from fedtailor.core import trees
from fedtailor.core.types import Batch, Phase, Tree
from fedtailor.data.batching import BatchIndices, iter_batch_index_blocks, iter_batch_indices
from fedtailor.data.batching import count_steps as count_plan_steps
from fedtailor.engines import client_loop
from fedtailor.engines.base import ClientWork
from fedtailor.engines.chunking import compute_cache_sized_slices
from fedtailor.engines.client_loop import StepGraphs
from fedtailor.engines.device_data import DeviceDataset
from fedtailor.ops.transfer import to_device


class ClientStack(NamedTuple):
    """Carries that take the steps of a phase together, and the clients whose batches they see.

    The members are clients, or uploads that the server corrects; with `shares_batches` all of them
    see the same batches, those of the only entry of `client_ids` and `keys`.
    """

    carry: Tree  # stacked, [members, ...]
    num_steps: np.ndarray  # [members]
    client_ids: np.ndarray  # [members] or [1]
    keys: Tensor  # [members] or [1]: random keys of this phase
    shares_batches: bool = False

    def take(self, members: slice) -> "ClientStack":
        """Return the stack of some members."""
        return self._select(trees.take_rows(self.carry, members), members)

    def reorder(self, order: np.ndarray, device: torch.device) -> "ClientStack":
        """Return the stack, which is on `device`, with its members in another order."""
        return self._select(_reorder_rows(self.carry, order, device), order)

    def _select(self, carry: Tree, members: slice | np.ndarray) -> "ClientStack":
        selected = self._replace(carry=carry, num_steps=self.num_steps[members])
        if self.shares_batches:
            return selected
        return selected._replace(client_ids=self.client_ids[members], keys=self.keys[members])


class PhaseWork(NamedTuple):
    """A phase, with what the members of a stack have in common in it."""

    phase: Phase
    shared_input: Tree
    device_data: DeviceDataset | None  # None: steps see no batches
    is_compiled: bool  # applies where steps are programs

    def count_steps(self, client_ids: np.ndarray) -> np.ndarray:
        """Return the number of steps of each client, [clients]."""
        if self.device_data is None:
            return np.full(len(client_ids), self.phase.plan.steps or 0)
        return count_plan_steps(self.phase.plan, self.device_data.examples, client_ids)

    def iter_batch_indices(self, stack: ClientStack) -> Iterator[tuple[BatchIndices, ...]]:
        """Yield the batch indices of a sorted stack, step by step."""
        if self.device_data is None:
            return itertools.repeat((), int(stack.num_steps[0]))
        return iter_batch_indices(
            self.phase.plan,
            self.device_data.examples,
            stack.client_ids,
            stack.keys,
            int(stack.num_steps[0]),
        )

    def load_batches(
        self, indices: tuple[BatchIndices, ...], index: slice | int
    ) -> tuple[Batch, ...]:
        """Return the batches of a step for one member of a stack, or for a slice of members."""
        if self.device_data is None:
            return ()
        load_batch = self.device_data.load_batch
        return tuple(load_batch(spec_indices.select(index)) for spec_indices in indices)


class StackRunner:
    """Runs phases for stacks of clients, and keeps the programs and graphs that it makes.

    Args:
        device: Device of the stacks.
        use_programs: Whether steps are programs.
        should_loop_clients: Whether clients run one after another where steps are not compiled.
        should_step_alone: Whether a CPU's programs are for one client, since one for a stack is
            slower.
        should_trace_steps: Whether steps of one client after another are traced once that pays.
    """

    def __init__(
        self,
        device: torch.device,
        use_programs: bool,
        should_loop_clients: bool,
        should_step_alone: bool,
        should_trace_steps: bool = False,
    ) -> None:
        self.use_programs = use_programs
        self.compile_failure = ""  # why a step could not be compiled, if one could not
        self.compile_deadline = float("inf")  # of `time.monotonic()`
        self._device = device
        self._should_loop_clients = should_loop_clients
        self._should_step_alone = should_step_alone
        self._should_trace_steps = should_trace_steps
        # Keys contain ids of objects, which are kept in the values so that no id is used again.
        self._programs: dict[Any, tuple[Phase, StepProgram]] = {}
        self._traced: dict[tuple[int, bool], tuple[Any, TracedFunction]] = {}
        self._step_graphs: dict[int, tuple[Phase, StepGraphs]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out programs and graphs, which do not pickle and are made again on demand."""
        return self.__dict__ | {"_programs": {}, "_traced": {}, "_step_graphs": {}}

    def run_phase(self, work: PhaseWork, stack: ClientStack) -> Tree:
        """Return the carry of a stack, in its order, after all steps of a phase."""
        order = np.argsort(-stack.num_steps, kind="stable")
        is_sorted = bool((order == np.arange(len(order))).all())
        if not is_sorted:
            stack = stack.reorder(order, self._device)
        num_active = int((stack.num_steps > 0).sum())
        if num_active == 0:
            carry = stack.carry
        elif num_active == len(order):
            carry = self._run_active(work, stack)
        else:
            carry = self._run_active(work, stack.take(slice(0, num_active)))
            idle = trees.take_rows(stack.carry, slice(num_active, None))
            carry = trees.concat([carry, idle])
        if is_sorted:
            return carry
        return _reorder_rows(carry, np.argsort(order), self._device)

    def _run_active(self, work: PhaseWork, stack: ClientStack) -> Tree:
        """Return the carry of a sorted stack whose members all have steps to take."""
        if self._should_loop_clients and not work.is_compiled:
            return self._run_one_by_one(work, stack)
        # A step without batches runs once and may change the carry's shape; no program can.
        if self.use_programs and work.phase.plan.specs:
            return self._run_programs(work, stack)
        if stack.shares_batches:
            return self._run_stack_on_shared_batches(work, stack)
        return self._run_shrinking_stack(work, stack)

    def _run_one_by_one(self, work: PhaseWork, stack: ClientStack) -> Tree:
        """Return the carry after all steps of one member of the stack after another."""
        num_members = len(stack.num_steps)
        client_ids = np.broadcast_to(stack.client_ids, num_members).tolist()
        keys = stack.keys.expand(num_members)
        graphs = self._get_step_graphs(work.phase)
        carries = []
        for index, (client, key) in enumerate(zip(client_ids, keys, strict=True)):
            carry = trees.take_row(stack.carry, index)
            client_work = ClientWork(work.device_data, client, key)
            carries.append(
                client_loop.run_phase(work.phase, work.shared_input, carry, client_work, graphs)
            )
        return trees.stack(carries)

    def _get_step_graphs(self, phase: Phase) -> StepGraphs | None:
        """Return the graphs of a phase's step; None if it takes no batches or is not traced."""
        if not self._should_trace_steps or not phase.plan.specs:
            return None
        key = id(phase.step)
        if key not in self._step_graphs:
            self._step_graphs[key] = phase, StepGraphs(phase)
        return self._step_graphs[key][1]

    def _run_stack_on_shared_batches(self, work: PhaseWork, stack: ClientStack) -> Tree:
        carry = stack.carry
        members = torch.arange(len(stack.num_steps))
        for indices in work.iter_batch_indices(stack):
            batches = work.load_batches(indices, 0)
            carry = step_stack(
                work.phase.step, work.shared_input, carry, batches, members, shares_batches=True
            )
        return carry

    def _run_shrinking_stack(self, work: PhaseWork, stack: ClientStack) -> Tree:
        """Return the carry after all steps; clients leave the stack as soon as they finish."""
        carry = stack.carry
        num_stacked = len(stack.num_steps)
        finished: list[Tree] = []
        for step_idx, indices in enumerate(work.iter_batch_indices(stack)):
            num_active = int((stack.num_steps > step_idx).sum())
            if num_active < num_stacked:
                finished.insert(0, trees.take_rows(carry, slice(num_active, None)))
                carry = trees.take_rows(carry, slice(0, num_active))
                num_stacked = num_active
            batches = work.load_batches(indices, slice(0, num_active))
            members = torch.arange(num_active)
            carry = step_stack(work.phase.step, work.shared_input, carry, batches, members)
        return trees.concat([carry, *finished]) if finished else carry

    def _run_programs(self, work: PhaseWork, stack: ClientStack) -> Tree:
        """Return the carry after all steps of the stack, one slice of it after another."""
        result = trees.apply(_empty_like, stack.carry)
        slices = self._split(stack)
        if len(slices) == 1:
            self._run_program(work, stack, result)
            return result
        for members in slices:
            self._run_program(work, stack.take(members), trees.take_rows(result, members))
        return result

    def _run_program(self, work: PhaseWork, stack: ClientStack, out: Tree) -> None:
        """Run all steps of a stack as one program and write the carry into the buffers `out`."""
        assert work.device_data is not None
        index_blocks = iter_batch_index_blocks(
            work.phase.plan,
            work.device_data.examples,
            stack.client_ids,
            stack.keys,
            int(stack.num_steps[0]),
            full_width=True,
        )
        verified_blocks = _verify_blocks(work.device_data, index_blocks)
        first_block = next(verified_blocks)
        program = self._get_program(work, stack, first_block[1])
        all_blocks = itertools.chain([first_block], verified_blocks)
        backend = self._bind_compiled if work.is_compiled else bind_eager
        program.run(work.shared_input, stack.carry, all_blocks, stack.num_steps, backend, out)

    def _bind_compiled(self, function: Callable[..., None], args: tuple[Tree, ...]) -> BoundStep:
        """Compile a step and bind it, or bind it uncompiled, with a warning, if that fails."""
        try:
            if time.monotonic() > self.compile_deadline:
                raise TimeoutError("compiling takes too long")
            return bind_compiled(function, args)
        except Exception as problem:
            reason = next(iter(str(problem).splitlines()), type(problem).__name__)
        self.compile_failure = self.compile_failure or reason
        _warn_once(reason)
        return bind_eager(function, args)

    def _get_program(
        self, work: PhaseWork, stack: ClientStack, block: tuple[BatchIndices, ...]
    ) -> StepProgram:
        """Return the program for a phase and for the shapes of a stack, which is made once."""
        assert work.device_data is not None
        step_rows = [indices.rows[0] for indices in block]
        leaves = trees.leaves((work.shared_input, stack.carry, *step_rows))
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        key = (id(work.phase.step), stack.shares_batches, work.is_compiled, shapes)
        if key not in self._programs:
            step = ProgramStep(work.phase.step, work.device_data.decode, stack.shares_batches)
            program = StepProgram(
                step, work.device_data.columns, work.shared_input, stack.carry, block
            )
            self._programs[key] = work.phase, program
        return self._programs[key][1]

    def _split(self, stack: ClientStack) -> list[slice]:
        """Return the members that run as one program: all, or slices where a stack is slow.

        It is slow on a CPU with wide convolutions, and where its carries do not fit into the cache.
        """
        num_members = len(stack.num_steps)
        if self._device.type != "cpu":
            return [slice(0, num_members)]
        if self._should_step_alone:
            return [slice(index, index + 1) for index in range(num_members)]
        return compute_cache_sized_slices(num_members, trees.nbytes(stack.carry) // num_members)

    def vmap_over_clients(
        self, function: Callable[[Tree, Tree], Tree], num_clients: int
    ) -> Callable[[Tree, Tree], Tree]:
        """Return a routine's `init` or `finalize` for a stack of clients with one shared input."""
        stacked = self.trace_once(function, is_stacked=True)
        # vmap needs a tensor with a row per client, and a routine's own inputs may have none.
        return lambda shared_input, inputs: stacked(shared_input, inputs, torch.arange(num_clients))

    def trace_once(self, function: Any, is_stacked: bool = False) -> Callable[..., Tree]:
        """Return a function, or its stacked form; where steps are programs, as a traced one."""
        key = (id(function), is_stacked)
        if key in self._traced:
            return self._traced[key][1]
        called = function
        if is_stacked:
            called = vmap(partial(_call_without_index, function), (None, 0, 0))
        if not self.use_programs:
            return called  # type: ignore[no-any-return]
        self._traced[key] = function, TracedFunction(called)
        return self._traced[key][1]


@cache
def _warn_once(reason: str) -> None:
    message = (
        f"torch {torch.__version__} cannot compile a step, which runs uncompiled, "
        f"with the same results: {reason}"
    )
    warnings.warn(message, RuntimeWarning, stacklevel=2)


def _verify_blocks(
    device_data: DeviceDataset, index_blocks: Iterator[tuple[int, tuple[BatchIndices, ...]]]
) -> Iterator[tuple[int, tuple[BatchIndices, ...]]]:
    """Yield blocks of batches, each after verifying its examples, which programs gather."""
    for num_steps, block in index_blocks:
        for indices in block:
            device_data.verify_rows(indices.rows)
        yield num_steps, block


def _reorder_rows(stacked: Tree, order: np.ndarray, device: torch.device) -> Tree:
    return trees.take_rows(stacked, to_device(torch.from_numpy(order), device))


def _call_without_index(
    function: Callable[[Tree, Tree], Tree], shared_input: Tree, client_input: Tree, index: Tensor
) -> Tree:
    return function(shared_input, client_input)


def _empty_like(leaf: Tensor) -> Tensor:
    return torch.empty_like(leaf, memory_format=torch.contiguous_format)
