"""Detection of lost ranks: each rank counts up in a store, and polls the counts of the others.

A process that dies stops counting, whatever it was doing and whatever the others are waiting for.
Timeouts are measured in polls and not by a clock, so that a process that was itself suspended does
not take the others for lost.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from torch.distributed.distributed_c10d import Store

INTERVAL_SECONDS = 0.5
"""Seconds between two polls."""
SILENCE_TIMEOUT = 4.0
"""Seconds without a new count after which a rank is lost, once communication has failed."""
LOST_TIMEOUT = 40.0
"""Seconds without a new count after which a rank is lost, even if nothing has failed."""
_LEFT = "left"


class Heartbeat(threading.Thread):
    """Thread that counts for its rank and watches the others; it exits the process if one is lost.

    Args:
        store: A connection of its own to the store of all ranks.
        rank: This process's rank.
        world_size: Number of processes.
        describe_loss: Returns the message for lost ranks; empty if another rank prints it.
    """

    def __init__(
        self, store: Store, rank: int, world_size: int, describe_loss: Callable[[list[int]], str]
    ) -> None:
        super().__init__(name="fedtailor-watch", daemon=True)
        self._store = store
        self._rank = rank
        self._describe_loss = describe_loss
        self.keys = [f"fedtailor/beat/{other}" for other in range(world_size)]
        # Each other rank's count, and the poll in which it was first seen.
        self._last_beats = {other: ("", 0) for other in range(world_size) if other != rank}
        self._stop_event = threading.Event()
        self._num_polls = 0
        self._is_store_unreachable = False

    def run(self) -> None:
        """Count and poll until the thread is stopped; exit the process if a rank is lost."""
        while not self._stop_event.wait(INTERVAL_SECONDS):
            self._poll()
            lost_ranks = self.find_lost(LOST_TIMEOUT)
            if lost_ranks:
                self._exit(lost_ranks)
        with suppress(RuntimeError):
            self._store.set(self.keys[self._rank], _LEFT)

    def beat(self) -> None:
        """Write this rank's count."""
        self._store.set(self.keys[self._rank], str(self._num_polls))

    def stop(self) -> None:
        """Stop counting and polling; the other ranks see that this one has left and is not lost."""
        self._stop_event.set()
        if self.is_alive():
            self.join(SILENCE_TIMEOUT)

    def find_lost(self, timeout: float) -> list[int]:
        """Return the ranks without a new count for `timeout` seconds, in ascending order."""
        oldest_poll = self._num_polls - timeout / INTERVAL_SECONDS
        silent_ranks = []
        for other, (count, poll) in sorted(self._last_beats.items()):
            if count != _LEFT and poll < oldest_poll:
                silent_ranks.append(other)
        if self._is_store_unreachable and 0 in silent_ranks:
            # Rank 0 may host the store, and without the store all ranks are silent.
            return [0]
        return silent_ranks

    def wait_for_lost(self) -> list[int]:
        """Return the lost ranks after communication has failed, waiting until there is one.

        The list is empty if none is found in twice the time that it should take.
        """
        deadline = time.monotonic() + 2 * SILENCE_TIMEOUT
        lost_ranks = self.find_lost(SILENCE_TIMEOUT)
        while not lost_ranks and time.monotonic() < deadline and self.is_alive():
            time.sleep(INTERVAL_SECONDS / 5)
            lost_ranks = self.find_lost(SILENCE_TIMEOUT)
        return lost_ranks

    def _poll(self) -> None:
        self._num_polls += 1
        try:
            self.beat()
            for other, (last_count, _) in list(self._last_beats.items()):
                count = self._store.get(self.keys[other]).decode()
                if count != last_count:
                    self._last_beats[other] = (count, self._num_polls)
        except RuntimeError:
            self._is_store_unreachable = True

    def _exit(self, lost_ranks: list[int]) -> None:
        """Exit the process: its main thread waits for a lost rank and cannot be interrupted."""
        message = self._describe_loss(lost_ranks)
        if message:
            os.write(sys.stderr.fileno(), f"fedtailor: {message}\n".encode())
        os._exit(2)
