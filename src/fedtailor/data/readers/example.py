"""`tf.train.Example` messages without TensorFlow: the few words of the protocol-buffer format that they use.

Example { Features = 1 }    Features { map<string, Feature> = 1 }
Feature { BytesList = 1 or FloatList = 2 or Int64List = 3 }, each { repeated value = 1 }, numbers packed or not
"""

from collections.abc import Collection, Iterator

import numpy as np

from fedtailor.data.holders import Array

Feature = list[bytes] | Array
VARINT, EIGHT, LENGTH, FOUR = 0, 1, 2, 5
BYTES, FLOATS, WHOLES = 1, 2, 3


def parse_example(raw: bytes, wanted: Collection[str]) -> dict[str, Feature]:
    """The wanted features of a message: bytes as a list, numbers as float32 or int64 arrays. ValueError if damaged."""
    found: dict[str, Feature] = {}
    for features in _inside(memoryview(raw)):
        for entry in _inside(features):
            fields = _fields(entry)
            number, _, key = next(fields, (0, LENGTH, b""))
            name = bytes(_piece(key)).decode() if number == 1 else ""  # writers put an entry's key before its value
            if name in wanted:
                found[name] = _feature(_piece({number: value for number, _, value in fields}.get(2, b"")))
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(f"an example has no {', '.join(missing)}")
    return found


def _feature(raw: memoryview) -> Feature:
    for kind, _, values in _fields(raw):
        if kind == BYTES:
            return [bytes(value) for value in _inside(_piece(values))]
        if kind == FLOATS:
            return np.frombuffer(b"".join(_inside(_piece(values), LENGTH, FOUR)), "<f4").astype(np.float32)
        if kind == WHOLES:
            return np.array(list(_wholes(_piece(values))), np.uint64).astype(np.int64)
    raise ValueError("a feature is empty")


def _wholes(raw: memoryview) -> Iterator[int]:
    """Whole numbers, packed in one piece or each on its own."""
    for number, _, value in _fields(raw):
        if number == 1 and isinstance(value, int):
            yield value
        elif number == 1:
            at, packed = 0, _piece(value)
            while at < len(packed):
                one, at = _varint(packed, at)
                yield one


def _inside(raw: memoryview, *wires: int) -> Iterator[memoryview]:
    """Every field number 1 of a message, of those kinds."""
    for number, wire, value in _fields(raw):
        if number == 1 and wire in (wires or (LENGTH,)):
            yield _piece(value)


def _piece(value: int | memoryview | bytes) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number stands where a message should")
    return memoryview(value)


def _fields(raw: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """The fields of a message: number, kind on the wire, value."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, at = _varint(raw, at)
            yield number, wire, value
            continue
        if wire == LENGTH:
            size, at = _varint(raw, at)
        elif wire in (EIGHT, FOUR):
            size = 8 if wire == EIGHT else 4
        else:
            raise ValueError(f"a field is of an unknown kind {wire}")
        if at + size > len(raw):
            raise ValueError("a field is cut off")
        yield number, wire, raw[at : at + size]
        at += size


def _varint(raw: memoryview, at: int) -> tuple[int, int]:
    """A whole number in groups of seven bits, lowest first, and where it ends."""
    if at < len(raw) and raw[at] < 128:  # nearly all numbers are this short
        return raw[at], at + 1
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(raw):
            raise ValueError("a number is cut off")
        value |= (raw[at] & 127) << shift
        at += 1
        if raw[at - 1] < 128:
            return value & (1 << 64) - 1, at
    raise ValueError("a number is too long")
