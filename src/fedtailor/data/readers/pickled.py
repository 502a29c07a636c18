"""Python pickles of plain things, read without running anything that they name.

A pickle is a program: it may call any function. Here its words are checked first, the only names it may speak are those
by which NumPy describes an array, and even those lead to stand-ins of ours that merely note what they are told.
"""

import io
import pickle
import pickletools
from typing import Any

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.errors import require

ALLOWED_OPCODES = {
    *(
        "PROTO",
        "FRAME",
        "STOP",
        "MARK",
        "MEMOIZE",
        "BINPUT",
        "LONG_BINPUT",
        "PUT",
        "BINGET",
        "LONG_BINGET",
        "GET",
    ),
    *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "LIST", "APPEND", "APPENDS"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "NONE", "NEWTRUE", "NEWFALSE"),
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"),
    *(
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
    ),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
}
"""What a pickle of dicts, lists, numbers, strings and arrays consists of."""


class ArrayStandIn:
    """What a pickle says of an array or of a type: how it was made and what it holds."""

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _encode_latin1(text: Any, encoding: Any) -> bytes:
    """Python 3's way of writing bytes in protocols that had none."""
    require(isinstance(text, str) and encoding == "latin1", "it spells bytes in an unknown way")
    return bytes(text, "latin1")


ALLOWED_NAMES = {
    ("_codecs", "encode"): _encode_latin1,
    ("numpy", "ndarray"): ArrayStandIn,
    ("numpy", "dtype"): ArrayStandIn,
}
for _core in ("numpy.core", "numpy._core"):
    ALLOWED_NAMES[_core + ".multiarray", "_reconstruct"] = ArrayStandIn
    ALLOWED_NAMES[_core + ".numeric", "_frombuffer"] = ArrayStandIn


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """A stand-in for a name that describes arrays; any other is refused."""
        require(
            (module, name) in ALLOWED_NAMES,
            f"it names {module}.{name}, which plain data does not need",
        )
        return ALLOWED_NAMES[module, name]


def read_pickle(raw: bytes) -> Any:
    """Read a pickle; arrays come as `ArrayStandIn`, for `to_byte_array`. Anything but plain data is refused."""
    for word, argument, _ in pickletools.genops(raw):
        require(
            word.name in ALLOWED_OPCODES, f"it uses {word.name}, which plain data does not need"
        )
        # The unpickler makes room for as many remembered things as the highest number says.
        tame = not word.name.endswith("PUT") or int(argument or 0) <= len(raw)
        require(tame, "it numbers more things than it can hold")
    return _RestrictedUnpickler(io.BytesIO(raw), encoding="bytes").load()


def to_byte_array(stand_in: Any) -> Array:
    """The array of unsigned bytes that a pickle describes."""
    require(isinstance(stand_in, ArrayStandIn), "it holds something else in place of an array")
    if stand_in.state is None:  # protocol 5: the bytes, type, shape and order at once
        raw, kind, shape, order = stand_in.args
    else:
        _, shape, kind, by_column, raw = stand_in.state
        order = "F" if by_column else "C"
    require(
        isinstance(kind, ArrayStandIn) and kind.args[0] in ("u1", b"u1"),
        "its array is not of unsigned bytes",
    )
    require(isinstance(raw, bytes | bytearray), "its array has no bytes")
    whole = isinstance(shape, tuple) and all(isinstance(size, int) and size >= 0 for size in shape)
    require(whole and order in ("C", "F"), "its array has no proper shape")
    return np.frombuffer(raw, np.uint8).reshape(shape, order=order)
