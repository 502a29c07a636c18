"""Processes that work together, as torchrun starts them: rank 0 leads, the others do what it announces.

All talk between ranks is here. Tensors of the model travel on the device (NCCL between GPUs, Gloo between CPUs), words
and clients' memories by Gloo. A rank that dies makes the talk of the others fail, or is missed by `Heartbeat`.
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

JOIN_TIMEOUT = timedelta(minutes=5)  # how long ranks wait for each other in the beginning
RESPONSE_TIMEOUT = timedelta(
    days=1
)  # how long a rank may work before it answers; a dead one is noticed by `Heartbeat`


class Ranks:
    """This process among those of a run; without others it is rank 0 of 1 and talks to nobody."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank, self.world_size = rank, world_size
        self.round_idx = 0  # that is being worked on
        self.remedy = "run the same command again"  # what to do if a rank is lost
        self._heartbeat: Heartbeat | None = None
        self._object_group: Any = None
        self._is_busy = False  # between an announcement and the end of what was announced

    def join(self) -> None:
        """Meets the others."""
        with self._detect_lost_ranks():
            store, _, _ = next(rendezvous("env://", timeout=JOIN_TIMEOUT))
            self._heartbeat = Heartbeat(
                store.clone(), self.rank, self.world_size, self._describe_loss
            )
            self._heartbeat.beat()
            store.wait(self._heartbeat.keys, JOIN_TIMEOUT)
            self._heartbeat.start()
            backend = (
                "cpu:gloo,cuda:nccl"
                if torch.cuda.is_available() and dist.is_nccl_available()
                else "gloo"
            )
            dist.init_process_group(
                backend,
                store=store,
                rank=self.rank,
                world_size=self.world_size,
                timeout=RESPONSE_TIMEOUT,
            )
            self._object_group = dist.new_group(backend="gloo", timeout=RESPONSE_TIMEOUT)

    def leave(self) -> None:
        """Parts from the others, in an orderly way unless something has been begun and not been done."""
        if self._heartbeat:
            self._heartbeat.stop()
        if dist.is_initialized() and not self._is_busy:
            dist.destroy_process_group()

    def announce(self, command: Any) -> None:
        """Rank 0 tells all others what to do."""
        self._is_busy = True
        if self.world_size > 1:
            with self._detect_lost_ranks():
                dist.broadcast_object_list([command], src=0, group=self._object_group)

    def receive_command(self) -> Any:
        """What rank 0 announces next."""
        received = [None]
        with self._detect_lost_ranks():
            dist.broadcast_object_list(received, src=0, group=self._object_group)
        return received[0]

    def finish_command(self) -> None:
        """What was announced is done."""
        self._is_busy = False

    def shutdown(self, command: Any) -> None:
        """Rank 0 announces the last command; if others wait for something else, they see that it has left."""
        if not self._is_busy:
            with suppress(LostRankError):
                self.announce(command)
        self.leave()

    def all_gather_object(self, value: Any) -> list[Any]:
        """What every rank has to say, told to all."""
        gathered = [value] * self.world_size
        if self.world_size > 1:
            with self._detect_lost_ranks():
                dist.all_gather_object(gathered, value, group=self._object_group)
        return gathered

    def gather_object(self, value: Any) -> list[Any]:
        """What every rank has to say, told to rank 0 alone; the others get nothing."""
        if self.world_size == 1:
            return [value]
        gathered = [None] * self.world_size if self.rank == 0 else None
        with self._detect_lost_ranks():
            dist.gather_object(value, gathered, dst=0, group=self._object_group)
        return gathered or []

    def broadcast(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Rank 0's tensors, on every rank; the others give tensors of the same shapes."""
        if self.world_size == 1:
            return list(leaves)
        tensors = [
            leaf.contiguous() if self.rank == 0 else torch.empty_like(leaf).contiguous()
            for leaf in leaves
        ]
        with self._detect_lost_ranks():
            for leaf in tensors:
                dist.broadcast(leaf, src=0)
        return tensors

    def reduce_sum(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """The sums of all ranks' tensors, on rank 0; what the others get is of no use."""
        sums = [leaf.contiguous().clone() for leaf in leaves]
        if self.world_size > 1:
            with self._detect_lost_ranks():
                for leaf in sums:
                    dist.reduce(leaf, dst=0)
        return sums

    def send(self, leaves: Sequence[Tensor], dst: int) -> None:
        """Sends tensors to one rank, which must receive them."""
        with self._detect_lost_ranks():
            for leaf in leaves:
                dist.send(leaf.cpu().contiguous(), dst, group=self._object_group)

    def receive(self, like: Sequence[tuple[Sequence[int], torch.dtype]], src: int) -> list[Tensor]:
        """Receives what a rank sends: tensors of these shapes and kinds."""
        leaves = [torch.empty(tuple(shape), dtype=dtype) for shape, dtype in like]
        with self._detect_lost_ranks():
            for leaf in leaves:
                dist.recv(leaf, src, group=self._object_group)
        return leaves

    @contextmanager
    def _detect_lost_ranks(self) -> Iterator[None]:
        """Turns failing talk into a sentence that says who is gone."""
        try:
            yield
        except RuntimeError as problem:
            gone = self._heartbeat.wait_for_lost() if self._heartbeat else []
            raise LostRankError(self._describe_loss(gone)) from problem

    def _describe_loss(self, gone: list[int]) -> str:
        """What to say when ranks are gone; the first one that is left says it."""
        if self.rank != min(set(range(self.world_size)) - set(gone), default=self.rank):
            return ""
        subject = f"Rank {' and '.join(map(str, gone))}" if gone else "A rank"
        return f"{subject} of {self.world_size} was lost in round {self.round_idx}; {self.remedy}"


_joined_ranks = Ranks()


def get_ranks() -> Ranks:
    """This process among those that have joined; alone unless `join` was called."""
    return _joined_ranks


def get_launched_world_size() -> int:
    """How many processes torchrun has started for this run."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def join() -> Ranks:
    """Meets the processes that torchrun has started, each of which calls this once, and takes a GPU if there is one."""
    global _joined_ranks
    if get_launched_world_size() > 1 and _joined_ranks.world_size == 1:
        lacking = [
            name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)
        ]
        require(
            not lacking,
            f"The environment says WORLD_SIZE={get_launched_world_size()}, but not {', '.join(lacking)}; "
            "start with torchrun, or unset WORLD_SIZE to run in one process.",
        )
        ranks = Ranks(int(os.environ["RANK"]), get_launched_world_size())
        if torch.cuda.is_available() and get_local_rank() < torch.cuda.device_count():
            torch.cuda.set_device(get_local_rank())
        ranks.join()
        _joined_ranks = ranks
    return _joined_ranks


def get_local_rank() -> int:
    """The number of this process among those on its machine."""
    return int(os.environ.get("LOCAL_RANK") or 0)
