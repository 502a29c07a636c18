"""Processes that work together, as torchrun starts them: rank 0 leads, the others do what it announces.

All talk between ranks is here. Tensors of the model travel on the device (NCCL between GPUs, Gloo between CPUs), words
and clients' memories by Gloo. A rank that dies makes the talk of the others fail, or is missed by `Watch`.
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

from fedtailor.engines.watch import Watch
from fedtailor.errors import LostRankError, require

JOINING = timedelta(minutes=5)  # how long ranks wait for each other in the beginning
ANSWERING = timedelta(days=1)  # how long a rank may work before it answers; a dead one is noticed by `Watch`


class Ranks:
    """This process among those of a run; without others it is rank 0 of 1 and talks to nobody."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world
        self.round = 0  # that is being worked on
        self.remedy = "run the same command again"  # what to do if a rank is lost
        self._watch: Watch | None = None
        self._words: Any = None
        self._talking = False  # between an announcement and the end of what was announced

    def join(self) -> None:
        """Meets the others."""
        with self._noticing_loss():
            store, _, _ = next(rendezvous("env://", timeout=JOINING))
            self._watch = Watch(store.clone(), self.rank, self.world, self._sentence)
            self._watch.count()
            store.wait(self._watch.keys, JOINING)
            self._watch.start()
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world, timeout=ANSWERING)
            self._words = dist.new_group(backend="gloo", timeout=ANSWERING)

    def leave(self) -> None:
        """Parts from the others, in an orderly way unless something has been begun and not been done."""
        if self._watch:
            self._watch.end()
        if dist.is_initialized() and not self._talking:
            dist.destroy_process_group()

    def announce(self, command: Any) -> None:
        """Rank 0 tells all others what to do."""
        self._talking = True
        if self.world > 1:
            with self._noticing_loss():
                dist.broadcast_object_list([command], src=0, group=self._words)

    def heard(self) -> Any:
        """What rank 0 announces next."""
        told = [None]
        with self._noticing_loss():
            dist.broadcast_object_list(told, src=0, group=self._words)
        return told[0]

    def done(self) -> None:
        """What was announced is done."""
        self._talking = False

    def dismiss(self, command: Any) -> None:
        """Rank 0 announces the last command; if others wait for something else, they see that it has left."""
        if not self._talking:
            with suppress(LostRankError):
                self.announce(command)
        self.leave()

    def exchanged(self, words: Any) -> list[Any]:
        """What every rank has to say, told to all."""
        told = [words] * self.world
        if self.world > 1:
            with self._noticing_loss():
                dist.all_gather_object(told, words, group=self._words)
        return told

    def handed_in(self, words: Any) -> list[Any]:
        """What every rank has to say, told to rank 0 alone; the others get nothing."""
        if self.world == 1:
            return [words]
        told = [None] * self.world if self.rank == 0 else None
        with self._noticing_loss():
            dist.gather_object(words, told, dst=0, group=self._words)
        return told or []

    def spread(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Rank 0's tensors, on every rank; the others give tensors of the same shapes."""
        if self.world == 1:
            return list(leaves)
        sent = [leaf.contiguous() if self.rank == 0 else torch.empty_like(leaf).contiguous() for leaf in leaves]
        with self._noticing_loss():
            for leaf in sent:
                dist.broadcast(leaf, src=0)
        return sent

    def summed(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """The sums of all ranks' tensors, on rank 0; what the others get is of no use."""
        sums = [leaf.contiguous().clone() for leaf in leaves]
        if self.world > 1:
            with self._noticing_loss():
                for leaf in sums:
                    dist.reduce(leaf, dst=0)
        return sums

    def send(self, leaves: Sequence[Tensor], to: int) -> None:
        """Sends tensors to one rank, which must receive them."""
        with self._noticing_loss():
            for leaf in leaves:
                dist.send(leaf.cpu().contiguous(), to, group=self._words)

    def receive(self, like: Sequence[tuple[Sequence[int], torch.dtype]], source: int) -> list[Tensor]:
        """Receives what a rank sends: tensors of these shapes and kinds."""
        leaves = [torch.empty(tuple(shape), dtype=dtype) for shape, dtype in like]
        with self._noticing_loss():
            for leaf in leaves:
                dist.recv(leaf, source, group=self._words)
        return leaves

    @contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        """Turns failing talk into a sentence that says who is gone."""
        try:
            yield
        except RuntimeError as problem:
            gone = self._watch.found_gone() if self._watch else []
            raise LostRankError(self._sentence(gone)) from problem

    def _sentence(self, gone: list[int]) -> str:
        """What to say when ranks are gone; the first one that is left says it."""
        if self.rank != min(set(range(self.world)) - set(gone), default=self.rank):
            return ""
        who = f"Rank {' and '.join(map(str, gone))}" if gone else "A rank"
        return f"{who} of {self.world} was lost in round {self.round}; {self.remedy}"


_joined = Ranks()


def joined() -> Ranks:
    """This process among those that have joined; alone unless `join` was called."""
    return _joined


def started() -> int:
    """How many processes torchrun has started for this run."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def join() -> Ranks:
    """Meets the processes that torchrun has started, each of which calls this once, and takes a GPU if there is one."""
    global _joined
    if started() > 1 and _joined.world == 1:
        lacking = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        require(
            not lacking,
            f"The environment says WORLD_SIZE={started()}, but not {', '.join(lacking)}; "
            "start with torchrun, or unset WORLD_SIZE to run in one process.",
        )
        ranks = Ranks(int(os.environ["RANK"]), started())
        if torch.cuda.is_available() and local_rank() < torch.cuda.device_count():
            torch.cuda.set_device(local_rank())
        ranks.join()
        _joined = ranks
    return _joined


def local_rank() -> int:
    """The number of this process among those on its machine."""
    return int(os.environ.get("LOCAL_RANK") or 0)
