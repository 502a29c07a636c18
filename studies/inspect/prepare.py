"""Install the data sets that the scenarios need.

    python studies/inspect/prepare.py SOURCE     (FEDTAILOR_DATA names the folder they go to)

SOURCE is a folder with femnist.npz (whole writers), femnist_partial_writers.npz (other writers,
of whom there are few images), emnist_balanced47.npz, stackexchange_users.npz and
shakespeare_roles.npz, in the formats that `fedtailor data add` reads. Two sets are made for this
study from texts, as tables that nothing in this project was tried on before:

    posts     11 classes: the site of a post, from how often it has each of 300 frequent words
    verses    28 classes: the letter that comes next, from the 4 letters before it, by role
"""

import re
import sys
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.data.sources import add, add_custom, read_custom_blocks
from fedtailor.data.store.attributes import DatasetAttributes

NUM_WORDS = 300
MAX_COUNT = 8
LETTERS = "abcdefghijklmnopqrstuvwxyz "
NUM_LETTERS = len(LETTERS) + 1
CONTEXT = 4
VERSES_PER_ROLE = 120
NUM_ROLES = 80
MIN_ROLE_LENGTH = 4000

Arrays = dict[str, Any]


def make_posts(path: Path) -> Arrays:
    """Return posts as counts of frequent words, each with its site and its author."""
    with np.load(path) as source:
        text = source["text"].tobytes()
        offsets = source["doc_offsets"]
        users = source["doc_user"]
        sites = source["user_site"]
    word_lists = []
    for start, end in pairwise(offsets):
        word_lists.append(re.findall(r"[a-z]+", text[start:end].decode().lower()))
    totals = Counter(word for words in word_lists for word in words)
    columns = {word: column for column, (word, _) in enumerate(totals.most_common(NUM_WORDS))}
    x = np.zeros((len(word_lists), NUM_WORDS), np.uint8)
    for row, words in enumerate(word_lists):
        for word, count in Counter(words).items():
            if word in columns:
                x[row, columns[word]] = min(count, MAX_COUNT)
    _, labels = np.unique(sites, return_inverse=True)
    return {"x": x, "y": labels[users].astype(np.int64), "client": users}


def make_verses(path: Path) -> Arrays:
    """Return letters with the four before them, one-hot, of some roles that speak much."""
    with np.load(path) as source:
        text = source["text"]
        offsets = source["role_offsets"]
    codes = {ord(letter): code for code, letter in enumerate(LETTERS)}
    rng = np.random.default_rng(0)
    roles = np.flatnonzero(np.diff(offsets) >= MIN_ROLE_LENGTH)[:NUM_ROLES]
    x_parts = []
    y_parts = []
    for role in roles:
        lower = text[offsets[role] : offsets[role + 1]].tobytes().lower()
        letters = np.array([codes.get(byte, NUM_LETTERS - 1) for byte in lower])
        positions = rng.choice(len(letters) - CONTEXT, VERSES_PER_ROLE, replace=False)
        context = letters[positions[:, None] + np.arange(CONTEXT)]
        x_parts.append(np.eye(NUM_LETTERS, dtype=np.uint8)[context].reshape(len(positions), -1))
        y_parts.append(letters[positions + CONTEXT])
    owners = np.repeat(roles, VERSES_PER_ROLE)
    return {"x": np.concatenate(x_parts), "y": np.concatenate(y_parts), "client": owners}


def make_writers(path: Path, other_path: Path) -> Arrays:
    """Return FEMNIST's writers; the server has images of others, of whom few are known."""
    with np.load(path) as source:
        is_kept = source["is_dup"] == 0
        x = source["images"][is_kept][:, None]
        y = source["labels"][is_kept].astype(np.int64)
        owners = source["writer"][is_kept]
    with np.load(other_path) as source:
        server_rows = np.random.default_rng(0).permutation(len(source["images"]))[:600]
        x_server = source["images"][server_rows][:, None]
        y_server = source["labels"][server_rows].astype(np.int64)
    return {"x": x, "y": y, "client": owners, "x_server": x_server, "y_server": y_server}


def install(name: str, arrays: Arrays, scale: float, folder: Path) -> None:
    """Install arrays as a set of one's own."""
    path = folder / f"{name}.npz"
    np.savez(path, **arrays)
    add_custom(name, read_custom_blocks(path), DatasetAttributes(scale=scale))


def main() -> None:
    """Install all sets."""
    source = Path(sys.argv[1])
    add("femnist", source / "femnist.npz")
    add("emnist-balanced", source / "emnist_balanced47.npz")
    with tempfile.TemporaryDirectory() as folder:
        posts = make_posts(source / "stackexchange_users.npz")
        install("posts", posts, 0.5, Path(folder))
        verses = make_verses(source / "shakespeare_roles.npz")
        install("verses", verses, 1.0, Path(folder))
        writers = make_writers(source / "femnist.npz", source / "femnist_partial_writers.npz")
        install("writers", writers, 1 / 255, Path(folder))


if __name__ == "__main__":
    main()
