"""The processes of a run, as torchrun starts them: rank 0 gives commands, the others follow them.

All communication between ranks is here, under the names of `torch.distributed`. Tensors of the
model are sent between devices (NCCL between GPUs, Gloo between CPUs); objects and client states are
sent by Gloo. When a rank dies, the communication of the others fails, or `Heartbeat` finds out.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from fedtailor.engines.distributed.heartbeat import Heartbeat
from fedtailor.errors import LostRankError, require

JOIN_TIMEOUT = timedelta(minutes=5)
"""Time that ranks wait for each other at the start."""
RESPONSE_TIMEOUT = timedelta(days=1)
"""Time that a rank may compute before it communicates; `Heartbeat` detects one that is lost."""

Shapes = Sequence[tuple[Sequence[int], torch.dtype]]
"""Shapes and dtypes of tensors."""


class Ranks:
    """This process among those of a run; by itself it is rank 0 of 1 and does not communicate.

    Args:
        rank: This process's rank.
        world_size: Number of processes.
    """

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank = rank
        self.world_size = world_size
        self.round_idx = 0
        """Round of the run that errors name."""
        self.remedy = "run the same command again"
        """Advice that errors give after a rank was lost."""
        self._heartbeat: Heartbeat | None = None
        self._object_group: Any = None
        self._is_busy = False  # with a command

    def join(self) -> None:
        """Wait for all ranks, start the heartbeat and make the process groups."""
        with self._detect_lost_ranks():
            store, _, _ = next(rendezvous("env://", timeout=JOIN_TIMEOUT))
            self._heartbeat = Heartbeat(
                store.clone(), self.rank, self.world_size, self._describe_loss
            )
            self._heartbeat.beat()
            store.wait(self._heartbeat.keys, JOIN_TIMEOUT)
            self._heartbeat.start()
            backend = "gloo"
            if torch.cuda.is_available() and dist.is_nccl_available():
                backend = "cpu:gloo,cuda:nccl"
            dist.init_process_group(
                backend,
                store=store,
                rank=self.rank,
                world_size=self.world_size,
                timeout=RESPONSE_TIMEOUT,
            )
            self._object_group = dist.new_group(backend="gloo", timeout=RESPONSE_TIMEOUT)

    def leave(self) -> None:
        """Stop the heartbeat, and destroy the process groups unless a command was interrupted."""
        if self._heartbeat:
            self._heartbeat.stop()
        if dist.is_initialized() and not self._is_busy:
            dist.destroy_process_group()

    def announce(self, command: Any) -> None:
        """Broadcast a command from rank 0 to the others, which `receive_command`."""
        self._is_busy = True
        if self.world_size > 1:
            with self._detect_lost_ranks():
                dist.broadcast_object_list([command], src=0, group=self._object_group)

    def receive_command(self) -> Any:
        """Return the next command of rank 0, waiting for it."""
        received = [None]
        with self._detect_lost_ranks():
            dist.broadcast_object_list(received, src=0, group=self._object_group)
        return received[0]

    def finish_command(self) -> None:
        """Record that all ranks have finished the last command."""
        self._is_busy = False

    def shutdown(self, command: Any) -> None:
        """Broadcast the last command from rank 0 and leave.

        If a command was interrupted, the others communicate otherwise and cannot receive one; the
        heartbeat tells them that rank 0 has left.
        """
        if not self._is_busy:
            with suppress(LostRankError):
                self.announce(command)
        self.leave()

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the objects of all ranks, by rank, on every rank."""
        gathered = [value] * self.world_size
        if self.world_size > 1:
            with self._detect_lost_ranks():
                dist.all_gather_object(gathered, value, group=self._object_group)
        return gathered

    def gather_object(self, value: Any) -> list[Any]:
        """Return the objects of all ranks, by rank, on rank 0; an empty list on the others."""
        if self.world_size == 1:
            return [value]
        gathered = [None] * self.world_size if self.rank == 0 else None
        with self._detect_lost_ranks():
            dist.gather_object(value, gathered, dst=0, group=self._object_group)
        return gathered or []

    def broadcast(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Return rank 0's tensors on every rank; the others pass tensors of the same shapes."""
        if self.world_size == 1:
            return list(leaves)
        if self.rank == 0:
            tensors = [leaf.contiguous() for leaf in leaves]
        else:
            tensors = [torch.empty_like(leaf).contiguous() for leaf in leaves]
        with self._detect_lost_ranks():
            for leaf in tensors:
                dist.broadcast(leaf, src=0)
        return tensors

    def reduce(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums of all ranks' tensors on rank 0; the others get undefined values."""
        sums = [leaf.contiguous().clone() for leaf in leaves]
        if self.world_size > 1:
            with self._detect_lost_ranks():
                for leaf in sums:
                    dist.reduce(leaf, dst=0)
        return sums

    def send(self, leaves: Sequence[Tensor], dst: int) -> None:
        """Send tensors to a rank, which must `recv` them."""
        with self._detect_lost_ranks():
            for leaf in leaves:
                dist.send(leaf.cpu().contiguous(), dst, group=self._object_group)

    def recv(self, shapes: Shapes, src: int) -> list[Tensor]:
        """Return the tensors that a rank sends, on the CPU."""
        leaves = [torch.empty(tuple(shape), dtype=dtype) for shape, dtype in shapes]
        with self._detect_lost_ranks():
            for leaf in leaves:
                dist.recv(leaf, src, group=self._object_group)
        return leaves

    @contextmanager
    def _detect_lost_ranks(self) -> Iterator[None]:
        """Raise a `LostRankError` that names the lost ranks if communication in the block fails."""
        try:
            yield
        except RuntimeError as problem:
            lost_ranks = self._heartbeat.wait_for_lost() if self._heartbeat else []
            raise LostRankError(self._describe_loss(lost_ranks)) from problem

    def _describe_loss(self, lost_ranks: list[int]) -> str:
        """Return the message for lost ranks on the first rank that is left, else nothing."""
        remaining_ranks = set(range(self.world_size)) - set(lost_ranks)
        if self.rank != min(remaining_ranks, default=self.rank):
            return ""
        subject = "A rank"
        if lost_ranks:
            subject = f"Rank {' and '.join(map(str, lost_ranks))}"
        return f"{subject} of {self.world_size} was lost in round {self.round_idx}; {self.remedy}"


_joined_ranks = Ranks()


def get_ranks() -> Ranks:
    """Return this process among those that have joined; rank 0 of 1 unless `join` was called."""
    return _joined_ranks


def get_launched_world_size() -> int:
    """Return the number of processes that torchrun has started for this run."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def get_local_rank() -> int:
    """Return the number of this process among those on its machine."""
    return int(os.environ.get("LOCAL_RANK") or 0)


def join() -> Ranks:
    """Join the processes that torchrun has started and select the GPU of this process, if any.

    Each process calls this at its start; further calls do nothing.
    """
    global _joined_ranks
    world_size = get_launched_world_size()
    if world_size <= 1 or _joined_ranks.world_size > 1:
        return _joined_ranks
    variables = ("RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in variables if not os.environ.get(name)]
    require(
        not missing,
        f"The environment says WORLD_SIZE={world_size}, but not {', '.join(missing)}; "
        "start with torchrun, or unset WORLD_SIZE to run in one process.",
    )
    ranks = Ranks(int(os.environ["RANK"]), world_size)
    if torch.cuda.is_available() and get_local_rank() < torch.cuda.device_count():
        torch.cuda.set_device(get_local_rank())
    ranks.join()
    _joined_ranks = ranks
    return _joined_ranks
