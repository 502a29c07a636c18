"""Code of this project in C++, compiled for the processor when it is first asked for, and where compiled code is kept.

Where there is no compiler, or it fails, there is no such code, and whoever asks for it does without. What the
system's C library is told is here too.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Hashable, Iterable
from functools import cache
from pathlib import Path

import torch

from fedtailor.disk import hidden, hold_lock, write_bytes
from fedtailor.place import folder

PLACE = "TORCHINDUCTOR_CACHE_DIR"
"""The variable that says where torch keeps compiled code."""
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them
_FREED, _OWN = 1 << 28, 1 << 25
"""Bytes that are kept when they are freed, and from which on something gets memory of its own, which is not."""
_FORM = ("-shared", "-fPIC", "-fopenmp")


def place() -> Path:
    """Where compiled code is kept: beside the data, unless the user has said where."""
    said, torchs_own = os.environ.get(PLACE), sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    if torchs_own is not None and said == torchs_own.default_cache_dir():  # torch says so as soon as it is imported
        said = None
    return Path(said) if said else folder() / "compiled"


@cache
def keep_freed_memory() -> None:
    """Has this process keep memory that is freed, where the system's C library can be told to.

    Every step frees what it made, and the next one wants it again: from the system, that is page by page, with zeros.
    """
    tell = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if tell is not None:
        tell(_MMAP_THRESHOLD, _OWN)
        tell(_TRIM_THRESHOLD, _FREED)


def processor() -> tuple[Hashable, ...]:
    """What code for this processor alone depends on."""
    return sys.platform, *sorted(torch.cpu.get_capabilities().items())


def has_short_floats() -> bool:
    """Whether this processor multiplies bfloat16 by itself."""
    can = torch.cpu.get_capabilities()
    return any(can.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))


def hashed(parts: Iterable[bytes]) -> str:
    """A name that other parts do not have."""
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


@cache
def library(source: Path) -> ctypes.CDLL | None:
    """What a file of C++ comes to; None where it cannot be compiled or loaded."""
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if not compiler:
        return None
    command = compiler, *_FLAGS, *_FORM
    name = hashed((source.read_bytes(), repr((command, processor())).encode()))
    at = place() / "native" / f"{source.stem}-{name}.so"
    try:
        if not at.exists():
            _make(source, command, at)
        return ctypes.CDLL(str(at))
    except (OSError, subprocess.SubprocessError):
        return None


def _make(source: Path, command: tuple[str, ...], at: Path) -> None:
    """Compile into a file that appears when it is whole, unless another process has done so meanwhile."""
    at.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(hidden(at, "lock"), wait=True), tempfile.TemporaryDirectory() as room:
        if not at.exists():
            made = Path(room) / at.name
            subprocess.run([*command, str(source), "-o", str(made)], check=True, capture_output=True)
            write_bytes(at, made.read_bytes())
