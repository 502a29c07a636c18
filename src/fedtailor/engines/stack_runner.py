"""Steps of a phase for a stack of clients, in whichever of three ways is fastest.

- one client after another (`client_loop.py`), for models that stacking slows down on a CPU;
- as programs (`compiler/step_program.py`), if steps are compiled, or recorded on a GPU;
- stacked by `torch.func.vmap`, step by step, otherwise.

Clients are sorted by their number of steps and leave the stack when they have finished, so unequal clients cost no
masked steps; masks exist only inside the last batch of an epoch. Programs let clients leave in a few lots, so that
there are few shapes to make programs for.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedtailor.compiler.inductor import bind_compiled, bind_eager
from fedtailor.compiler.step_program import StepProgram, step_stack
from fedtailor.compiler.trace import TracedFunction
from fedtailor.core import trees
from fedtailor.core.types import Batch, Phase, Tree
from fedtailor.data.batching import BatchIndices, iter_batch_index_blocks, iter_batch_indices
from fedtailor.data.batching import count_steps as count_plan_steps
from fedtailor.engines import client_loop
from fedtailor.engines.chunking import cache_sized_slices
from fedtailor.engines.device_data import DeviceDataset
from fedtailor.ops.transfer import to_device


class ClientStack(NamedTuple):
    """Carries that take the steps of a phase together, and whose batches they see.

    The members are clients, or uploads that the server corrects; with `shares_batches` all of them see the same
    batches, those of the only entry of `client_ids` and `keys`.
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
        """Return the stack with its members, which are on a device, in another order."""
        return self._select(_reorder_rows(self.carry, order, device), order)

    def _select(self, carry: Tree, members: slice | np.ndarray) -> "ClientStack":
        selected = self._replace(carry=carry, num_steps=self.num_steps[members])
        if self.shares_batches:
            return selected
        return selected._replace(client_ids=self.client_ids[members], keys=self.keys[members])


class PhaseWork(NamedTuple):
    """A phase and what all members of a stack have in common when they go through it."""

    phase: Phase
    shared_input: Tree
    device_data: DeviceDataset | None  # None: steps see no batches
    is_compiled: bool  # whether programs are compiled

    def count_steps(self, client_ids: np.ndarray) -> np.ndarray:
        """Return the number of steps of each client."""
        if self.device_data is None:
            return np.full(len(client_ids), self.phase.plan.steps or 0)
        return count_plan_steps(self.phase.plan, self.device_data.examples, client_ids)

    def iter_batch_indices(self, stack: ClientStack) -> Iterator[tuple[BatchIndices, ...]]:
        """Yield which examples the members of a stack see, step by step."""
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
        """Return the batches of a step, for some members of a stack or for one."""
        if self.device_data is None:
            return ()
        load_batch = self.device_data.load_batch
        return tuple(load_batch(spec_indices.select(index)) for spec_indices in indices)


class StackRunner:
    """Takes stacks of clients through phases, and keeps the programs that it makes for that.

    Args:
        device: Where steps run.
        use_programs: Whether steps are programs.
        loops_clients: Whether clients take their steps one after another where these are not compiled.
        steps_alone: Whether programs are for one client, since a stack of them is slower.
    """

    def __init__(
        self, device: torch.device, use_programs: bool, loops_clients: bool, steps_alone: bool
    ) -> None:
        self.use_programs = use_programs
        self.loops_clients = loops_clients
        self._device = device
        self._steps_alone = steps_alone
        # Both keep what they are named after by its id, so that nothing else gets the same id.
        self._programs: dict[Any, tuple[Phase, StepProgram]] = {}
        self._traced: dict[tuple[int, bool], tuple[Any, TracedFunction]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out programs, which do not pickle and are made again when they are needed."""
        return self.__dict__ | {"_programs": {}, "_traced": {}}

    def run_phase(self, work: PhaseWork, stack: ClientStack) -> Tree:
        """Return the carry of a stack after all steps of a phase."""
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
        if self.loops_clients and not work.is_compiled:
            return client_loop.run_phase_per_client(
                work.phase,
                work.shared_input,
                stack.carry,
                work.device_data,
                np.broadcast_to(stack.client_ids, stack.num_steps.shape),
                stack.keys.expand(len(stack.num_steps)),
            )
        # A step without batches is done once, and may change the carry's shape.
        if self.use_programs and work.phase.plan.specs:
            return self._run_programs(work, stack)
        if stack.shares_batches:
            return self._run_stack_on_shared_batches(work, stack)
        return self._run_shrinking_stack(work, stack)

    def _run_stack_on_shared_batches(self, work: PhaseWork, stack: ClientStack) -> Tree:
        carry = stack.carry
        members = torch.arange(len(stack.num_steps))
        for indices in work.iter_batch_indices(stack):
            batches = work.load_batches(indices, 0)
            carry = step_stack(work.phase.step, True, work.shared_input, carry, batches, members)
        return carry

    def _run_shrinking_stack(self, work: PhaseWork, stack: ClientStack) -> Tree:
        """Return the carry after all steps; clients that have finished leave the stack at once."""
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
            carry = step_stack(work.phase.step, False, work.shared_input, carry, batches, members)
        return trees.concat([carry, *finished]) if finished else carry

    def _run_programs(self, work: PhaseWork, stack: ClientStack) -> Tree:
        """Return the carry after all steps of the stack, or of a slice of it at a time."""
        result = trees.apply(_empty_like, stack.carry)
        slices = self._split(stack)
        for members in slices:
            part = stack
            part_result = result
            if len(slices) > 1:
                part = stack.take(members)
                part_result = trees.take_rows(result, members)
            self._run_program(work, part, part_result)
        return result

    def _run_program(self, work: PhaseWork, stack: ClientStack, result: Tree) -> None:
        assert work.device_data is not None
        index_blocks = iter_batch_index_blocks(
            work.phase.plan,
            work.device_data.examples,
            stack.client_ids,
            stack.keys,
            int(stack.num_steps[0]),
            full_width=True,
        )
        first_block = next(index_blocks)
        program = self._get_program(work, stack, first_block[1])
        blocks = itertools.chain([first_block], index_blocks)
        backend = bind_compiled if work.is_compiled else bind_eager
        program.run(work.shared_input, stack.carry, blocks, stack.num_steps, backend, result)

    def _get_program(
        self, work: PhaseWork, stack: ClientStack, block: tuple[BatchIndices, ...]
    ) -> StepProgram:
        """Return the program for such a phase and such shapes, which is made once."""
        assert work.device_data is not None
        step_rows = [indices.rows[0] for indices in block]
        leaves = trees.leaves((work.shared_input, stack.carry, *step_rows))
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        name = (id(work.phase.step), stack.shares_batches, work.is_compiled, shapes)
        if name not in self._programs:
            program = StepProgram(
                work.phase.step,
                work.device_data.columns,
                work.device_data.decode,
                work.shared_input,
                stack.carry,
                block,
                stack.shares_batches,
            )
            self._programs[name] = work.phase, program
        return self._programs[name][1]

    def _split(self, stack: ClientStack) -> list[slice]:
        """Return what takes its steps together: all members, or slices where large stacks are slow.

        On a CPU they are for clients with large convolutions, and where carries fill the cache.
        """
        num_members = len(stack.num_steps)
        if self._device.type != "cpu":
            return [slice(0, num_members)]
        if self._steps_alone:
            return [slice(index, index + 1) for index in range(num_members)]
        return cache_sized_slices(num_members, trees.nbytes(stack.carry) // num_members)

    def vmap_over_clients(
        self, function: Callable[[Tree, Tree], Tree], num_clients: int
    ) -> Callable[[Tree, Tree], Tree]:
        """Return a routine's `init` or `finalize` for a stack of clients with one shared input."""
        stacked = self.trace_once(function, is_stacked=True)
        # vmap needs a tensor with a row per client, and a routine's own inputs may have none.
        return lambda shared_input, inputs: stacked(shared_input, inputs, torch.arange(num_clients))

    def trace_once(self, function: Any, is_stacked: bool = False) -> Callable[..., Tree]:
        """Return a function, or its stacked form, traced into a graph at its second call if steps are programs."""
        name = (id(function), is_stacked)
        if name in self._traced:
            return self._traced[name][1]
        called = function
        if is_stacked:
            called = vmap(partial(_call_without_index, function), (None, 0, 0))
        if not self.use_programs:
            return called  # type: ignore[no-any-return]
        self._traced[name] = function, TracedFunction(called)
        return self._traced[name][1]


def _reorder_rows(stacked: Tree, order: np.ndarray, device: torch.device) -> Tree:
    return trees.take_rows(stacked, to_device(torch.from_numpy(order), device))


def _call_without_index(
    function: Callable[[Tree, Tree], Tree], shared_input: Tree, client_input: Tree, index: Tensor
) -> Tree:
    return function(shared_input, client_input)


def _empty_like(leaf: Tensor) -> Tensor:
    return torch.empty_like(leaf, memory_format=torch.contiguous_format)
