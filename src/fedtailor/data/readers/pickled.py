"""Python pickles of plain data, read without running anything that they name.

A pickle is a program that may call any function. Here its opcodes are checked before it runs, and
of all names it may only use those by which NumPy describes an array. Even these lead to stand-ins
that merely keep their arguments.
"""

import io
import pickle
import pickletools
from typing import Any

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.errors import require

_FRAME_OPCODES = ("PROTO", "FRAME", "STOP", "MARK")
_MEMO_OPCODES = (
    *("MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"),
    *("BINGET", "LONG_BINGET", "GET"),
)
_CONTAINER_OPCODES = (
    *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
    *("EMPTY_LIST", "LIST", "APPEND", "APPENDS"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
)
_SCALAR_OPCODES = (
    *("NONE", "NEWTRUE", "NEWFALSE"),
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"),
)
_STRING_OPCODES = (
    *("STRING", "BINSTRING", "SHORT_BINSTRING"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
)
_CALL_OPCODES = ("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD")

ALLOWED_OPCODES = {
    *_FRAME_OPCODES,
    *_MEMO_OPCODES,
    *_CONTAINER_OPCODES,
    *_SCALAR_OPCODES,
    *_STRING_OPCODES,
    *_CALL_OPCODES,
}
"""What a pickle of dicts, lists, numbers, strings and arrays consists of."""


class ArrayStandIn:
    """Stand-in for an array or a type of a pickle: its constructor's arguments and its state."""

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _encode_latin1(text: Any, encoding: Any) -> bytes:
    """Return bytes that Python 3 pickled as Latin-1 text, in protocols that have no bytes."""
    require(isinstance(text, str) and encoding == "latin1", "it encodes bytes in an unknown way")
    return bytes(text, "latin1")


ALLOWED_NAMES = {
    ("_codecs", "encode"): _encode_latin1,
    ("numpy", "ndarray"): ArrayStandIn,
    ("numpy", "dtype"): ArrayStandIn,
    # NumPy 1
    ("numpy.core.multiarray", "_reconstruct"): ArrayStandIn,
    ("numpy.core.numeric", "_frombuffer"): ArrayStandIn,
    # NumPy 2
    ("numpy._core.multiarray", "_reconstruct"): ArrayStandIn,
    ("numpy._core.numeric", "_frombuffer"): ArrayStandIn,
}
"""What a pickle may name, with what is called in its place."""


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return what takes the place of an allowed name, and refuse any other."""
        require(
            (module, name) in ALLOWED_NAMES,
            f"it names {module}.{name}, which plain data does not need",
        )
        return ALLOWED_NAMES[module, name]


def read_pickle(raw: bytes) -> Any:
    """Return the content of a pickle of plain data, and refuse anything else.

    Arrays come as `ArrayStandIn`, which `to_byte_array` converts. An error's message is only the
    end of a sentence ("it uses ..."), before which the caller names the file.
    """
    for opcode, argument, _ in pickletools.genops(raw):
        require(
            opcode.name in ALLOWED_OPCODES, f"it uses {opcode.name}, which plain data does not need"
        )
        # The unpickler allocates a memo with as many entries as the highest index says.
        is_memo_write = opcode.name.endswith("PUT")
        has_valid_index = not is_memo_write or int(argument or 0) <= len(raw)
        require(has_valid_index, "it numbers more objects than it can hold")
    return _RestrictedUnpickler(io.BytesIO(raw), encoding="bytes").load()


def to_byte_array(stand_in: Any) -> Array:
    """Return the array of unsigned bytes that a pickle describes; other arrays are refused."""
    require(isinstance(stand_in, ArrayStandIn), "it holds something else in place of an array")
    if stand_in.state is None:  # protocol 5 passes everything as arguments
        raw, dtype, shape, order = stand_in.args
    else:
        _, shape, dtype, is_fortran_order, raw = stand_in.state
        order = "F" if is_fortran_order else "C"
    is_byte_type = isinstance(dtype, ArrayStandIn) and dtype.args[0] in ("u1", b"u1")
    require(is_byte_type, "its array is not of unsigned bytes")
    require(isinstance(raw, bytes | bytearray), "its array has no bytes")
    is_shape = isinstance(shape, tuple) and all(
        isinstance(size, int) and size >= 0 for size in shape
    )
    require(is_shape and order in ("C", "F"), "its array has no valid shape")
    return np.frombuffer(raw, np.uint8).reshape(shape, order=order)
