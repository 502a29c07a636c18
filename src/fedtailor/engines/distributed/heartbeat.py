"""Who is still there: every rank counts on in a store that all can reach, and looks at the others' counts.

A process that dies stops counting, whatever it was doing and whatever the others are waiting for. Patience is measured
in looks, so that a process that was itself asleep does not miss the others for it.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from torch.distributed.distributed_c10d import Store

INTERVAL_SECONDS = 0.5  # seconds between two looks
SILENCE_TIMEOUT = (
    4.0  # seconds without a count after which a rank is gone, if talking to somebody has failed
)
LOST_TIMEOUT = (
    40.0  # seconds without a count after which a rank is gone, even if nothing has failed
)
_LEFT = "left"


class Heartbeat(threading.Thread):
    """Counts for one rank and watches the others; ends the process if one of them is gone and nothing else does.

    store    a connection of its own
    say      what to say then, given who is gone; nothing if that is for somebody else to say
    """

    def __init__(
        self, store: Store, rank: int, world_size: int, describe_loss: Callable[[list[int]], str]
    ) -> None:
        super().__init__(name="fedtailor-watch", daemon=True)
        self._store, self._rank, self._describe_loss = store, rank, describe_loss
        self.keys = [f"fedtailor/beat/{other}" for other in range(world_size)]
        self._last_beats = {other: ("", 0) for other in range(world_size) if other != rank}
        self._stop_event = threading.Event()
        self._num_polls, self._is_store_unreachable = 0, False

    def run(self) -> None:
        """Counts and looks, until it is ended or somebody is gone."""
        while not self._stop_event.wait(INTERVAL_SECONDS):
            self._poll()
            if gone := self.find_lost(LOST_TIMEOUT):
                self._exit(gone)
        with suppress(RuntimeError):
            self._store.set(self.keys[self._rank], _LEFT)

    def beat(self) -> None:
        """Shows that this rank is there."""
        self._store.set(self.keys[self._rank], str(self._num_polls))

    def stop(self) -> None:
        """Stops counting and looking; the others see that it was on purpose."""
        self._stop_event.set()
        if self.is_alive():
            self.join(SILENCE_TIMEOUT)

    def find_lost(self, patience: float) -> list[int]:
        """Ranks that have not counted on for so many seconds."""
        least = self._num_polls - patience / INTERVAL_SECONDS
        silent = sorted(
            other
            for other, (last, when) in self._last_beats.items()
            if last != _LEFT and when < least
        )
        return (
            [0] if self._is_store_unreachable and 0 in silent else silent
        )  # whoever started them may have the store at rank 0

    def wait_for_lost(self) -> list[int]:
        """Who is gone, now that talking has failed: waits until it is seen, or no longer than it would take."""
        until = time.monotonic() + 2 * SILENCE_TIMEOUT
        while (
            not (gone := self.find_lost(SILENCE_TIMEOUT))
            and time.monotonic() < until
            and self.is_alive()
        ):
            time.sleep(INTERVAL_SECONDS / 5)
        return gone

    def _poll(self) -> None:
        self._num_polls += 1
        try:
            self.beat()
            for other, (before, _) in list(self._last_beats.items()):
                if (now := self._store.get(self.keys[other]).decode()) != before:
                    self._last_beats[other] = (now, self._num_polls)
        except RuntimeError:
            self._is_store_unreachable = True

    def _exit(self, gone: list[int]) -> None:
        """Ends the process, since its main thread waits for somebody who is gone, and cannot be told."""
        if message := self._describe_loss(gone):
            os.write(sys.stderr.fileno(), f"fedtailor: {message}\n".encode())
        os._exit(2)
