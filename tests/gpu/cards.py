"""Graphics cards that are not there: kernels are compiled for them, and what they would take is
counted.
"""

import importlib
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

_driver: Any = importlib.import_module("triton.runtime.driver").driver
_knobs: Any = importlib.import_module("triton.knobs")
_target: Any = importlib.import_module("triton.backends.compiler").GPUTarget


class Card(NamedTuple):
    """Its architecture, and the bytes of memory that a program's threads may share."""

    architecture: int
    shared: int


CARDS = [Card(80, 166_912), Card(86, 101_376), Card(90, 232_448)]


class Kernel(NamedTuple):
    """What a compiled kernel takes: registers a thread, and bytes that a thread keeps in slow
    memory.
    """

    name: str
    registers: int
    spilled: int


@contextmanager
def pretended(card: Card) -> Iterator[list[Kernel]]:
    """Has Triton compile for a card, and launch nothing; gives a list of what is compiled.

    Triton itself refuses a kernel that wants more shared memory than the card has.
    """
    compiled: list[Kernel] = []

    def load(name: str, code: bytes, shared: int, device: int) -> tuple[Any, ...]:
        kernel = Kernel(name, *_resources(code))
        compiled.append(kernel)
        return None, None, kernel.registers, kernel.spilled, 1024

    utils = SimpleNamespace(
        load_binary=load,
        get_device_properties=lambda device: {"max_shared_mem": card.shared},
    )
    before = _driver._active
    _driver.set_active(
        SimpleNamespace(
            utils=utils,
            launcher_cls=lambda source, metadata: _launch_nothing,
            get_current_target=lambda: _target("cuda", card.architecture, 32),
            get_current_device=lambda: card.architecture,  # so that no card gets another one's code
            get_current_stream=lambda device: 0,
        )
    )
    try:
        yield compiled
    finally:
        _driver._active = before


def _launch_nothing(*given: Any) -> None:
    """What a launch on a card does that is not there."""


def _resources(code: bytes) -> tuple[int, int]:
    """A kernel's registers and the bytes that it keeps in local memory, as the compiler counts
    them.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(code)
        told = subprocess.run(
            [_knobs.nvidia.cuobjdump.path, "-res-usage", str(file)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    counted = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", told)}
    return counted["REG"], counted["STACK"] + counted["LOCAL"]
