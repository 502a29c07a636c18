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

BEAT = 0.5  # seconds between two looks
SILENT = 4.0  # seconds without a count after which a rank is gone, if talking to somebody has failed
GONE = 40.0  # seconds without a count after which a rank is gone, even if nothing has failed
_LEFT = "left"


class Watch(threading.Thread):
    """Counts for one rank and watches the others; ends the process if one of them is gone and nothing else does.

    store    a connection of its own
    say      what to say then, given who is gone; nothing if that is for somebody else to say
    """

    def __init__(self, store: Store, rank: int, world: int, say: Callable[[list[int]], str]) -> None:
        super().__init__(name="fedtailor-watch", daemon=True)
        self._store, self._rank, self._say = store, rank, say
        self.keys = [f"fedtailor/beat/{other}" for other in range(world)]
        self._seen = {other: ("", 0) for other in range(world) if other != rank}
        self._ended = threading.Event()
        self._looks, self._unreachable = 0, False

    def run(self) -> None:
        """Counts and looks, until it is ended or somebody is gone."""
        while not self._ended.wait(BEAT):
            self._look()
            if gone := self.gone(GONE):
                self._leave(gone)
        with suppress(RuntimeError):
            self._store.set(self.keys[self._rank], _LEFT)

    def count(self) -> None:
        """Shows that this rank is there."""
        self._store.set(self.keys[self._rank], str(self._looks))

    def end(self) -> None:
        """Stops counting and looking; the others see that it was on purpose."""
        self._ended.set()
        if self.is_alive():
            self.join(SILENT)

    def gone(self, patience: float) -> list[int]:
        """Ranks that have not counted on for so many seconds."""
        least = self._looks - patience / BEAT
        silent = sorted(other for other, (last, when) in self._seen.items() if last != _LEFT and when < least)
        return [0] if self._unreachable and 0 in silent else silent  # whoever started them may have the store at rank 0

    def found_gone(self) -> list[int]:
        """Who is gone, now that talking has failed: waits until it is seen, or no longer than it would take."""
        until = time.monotonic() + 2 * SILENT
        while not (gone := self.gone(SILENT)) and time.monotonic() < until and self.is_alive():
            time.sleep(BEAT / 5)
        return gone

    def _look(self) -> None:
        self._looks += 1
        try:
            self.count()
            for other, (before, _) in list(self._seen.items()):
                if (now := self._store.get(self.keys[other]).decode()) != before:
                    self._seen[other] = (now, self._looks)
        except RuntimeError:
            self._unreachable = True

    def _leave(self, gone: list[int]) -> None:
        """Ends the process, since its main thread waits for somebody who is gone, and cannot be told."""
        if said := self._say(gone):
            os.write(sys.stderr.fileno(), f"fedtailor: {said}\n".encode())
        os._exit(2)
