"""What commands leave behind, as JSON documents that are compared with those of untouched files."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

_UNSTABLE_KEY = re.compile(
    "seconds|times|checksum|digest|sha256|hash|^(command|notes|versions|machine|commit)$"
)
"""Keys of values that differ between equal runs, or that nothing is computed from."""


def hash_file(path: Path) -> str | None:
    """Return a hash of a file's content; None if there is no file."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def read_stable_json(path: Path) -> Any:
    """Return the content of a JSON file without what differs between equal runs."""
    return _strip(json.loads(path.read_text())) if path.is_file() else None


def _strip(content: Any) -> Any:
    if isinstance(content, dict):
        kept = {key: value for key, value in content.items() if not _UNSTABLE_KEY.search(key)}
        return {key: _strip(value) for key, value in kept.items()}
    if isinstance(content, list):
        return [_strip(value) for value in content]
    return content


def summarize_run(folder: Path) -> dict[str, Any]:
    """Return what a run has computed: its model and every figure of its record."""
    path = folder / "model.safetensors"
    return {
        "files": {str(path): hash_file(path)},
        "record": read_stable_json(folder / "record.json"),
    }


def hash_last_state(folder: Path) -> str | None:
    """Return a hash of the server's state in a run's last checkpoint; None without any."""
    states = sorted(folder.glob("checkpoints/*/state.safetensors"))
    return hash_file(states[-1]) if states else None


def summarize_model(folder: Path) -> dict[str, Any]:
    """Return the weights of a personal model and what describes it."""
    path = folder / "model.safetensors"
    description = read_stable_json(folder / "personalized.json")
    return {"files": {str(path): hash_file(path)}, "description": description}


def drop_file(result: Any, path: Path) -> Any:
    """Return a result without the hash of a file."""
    if not isinstance(result, dict):
        return result
    return {key: drop_file(value, path) for key, value in result.items() if key != str(path)}


def find_difference(expected: Any, actual: Any, path: str = "") -> str:
    """Return the path of the first difference between two JSON documents; "" if they are equal."""
    if isinstance(expected, dict) and isinstance(actual, dict) and expected.keys() == actual.keys():
        pairs = [(f"{path}.{key}", expected[key], actual[key]) for key in expected]
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        pairs = [(f"{path}[]", *both) for both in zip(expected, actual, strict=True)]
    else:
        return "" if expected == actual else (path.lstrip(".") or "all of it")
    differences = (find_difference(before, after, where) for where, before, after in pairs)
    return next(filter(None, differences), "")
