"""JSON objects that carry a checksum of their own content, so that damage is noticed when read."""

import hashlib
import json
from typing import Any

CHECKSUM_KEY = "checksum"
"""Name of the entry with the checksum of all others."""


def dump_checked(content: dict[str, Any]) -> bytes:
    """Return the JSON of an object with the checksum of its content."""
    checked = {**content, CHECKSUM_KEY: _compute_checksum(content)}
    return (json.dumps(checked, indent=1, allow_nan=False) + "\n").encode()


def parse_checked(raw: bytes) -> dict[str, Any]:
    """Return the object without its checksum, or raise a ValueError if it is damaged."""
    content = json.loads(raw)
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    checksum = content.pop(CHECKSUM_KEY, None)
    if checksum != _compute_checksum(content):
        raise ValueError("its checksum is that of other content")
    return content


def _compute_checksum(content: dict[str, Any]) -> str:
    """Return the SHA-256 of an object, whatever the order and the layout of its JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
