"""Catalog of text data sets: Shakespeare by character, StackOverflow and Stack Exchange by word."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.data.readers import leaf, prepared, text, tff
from fedtailor.data.readers.text import Encoder, Vocabulary
from fedtailor.data.sources.catalog import CatalogEntry, Remote
from fedtailor.data.sources.images import TFF_URL
from fedtailor.data.store import DatasetAttributes
from fedtailor.errors import require

NUM_WORDS = 10_000
"""Number of words that have ids of their own; all others share one."""

NATURAL_DEFAULTS = {"partition": "natural", "server_from": "whole-clients", "least": 2}
SHAKESPEARE_FILES = "shakespeare.tar.bz2 or its folder, or a shakespeare_roles.npz"

ReadWith = Callable[[Encoder], Iterator[Block]]
"""Reads a data set with an encoder of its texts."""


def _make_character_attributes(about: str) -> DatasetAttributes:
    """Return the attributes of a data set whose targets are ids of characters."""
    return DatasetAttributes(
        classes=text.NUM_CHARACTER_IDS,
        tokens=True,
        padding=(text.PAD,),
        unscored_tokens=(text.UNK, text.BOS, text.EOS),
        about=about,
    )


def _make_word_attributes(about: str) -> DatasetAttributes:
    """Return the attributes of a data set whose targets are ids of words.

    Ids are as in `text.Vocabulary`: padding, the words, and then the unknown word, the beginning
    and the end.
    """
    return DatasetAttributes(
        classes=NUM_WORDS + 4,
        tokens=True,
        padding=(text.PAD,),
        unscored_tokens=(NUM_WORDS + 1, NUM_WORDS + 2, NUM_WORDS + 3),
        about=about,
    )


def _read_speeches(encode: Encoder, path: Path) -> Iterator[Block]:
    """Read Shakespeare's speeches from any of their files."""
    if path.suffix == ".npz":
        return prepared.shakespeare_roles(path, encode)
    if (path / "shakespeare_train.h5").exists():
        return tff.shakespeare(path, encode)
    npz_paths = sorted(path.glob("shakespeare*.npz"))
    require(
        bool(npz_paths),
        f"'{path}' must hold shakespeare_train.h5 or a shakespeare*.npz file, but has neither.",
    )
    return prepared.shakespeare_roles(npz_paths[0], encode)


def _read_windows(path: Path) -> Iterator[Block]:
    """Read Shakespeare as LEAF's windows, from LEAF's own files or from speeches."""
    if path.is_dir() and (path / "train").is_dir():
        return leaf.shakespeare(path)
    return _read_speeches(text.encode_next_character, path)


def _read_stackoverflow(path: Path) -> Iterator[Block]:
    read = partial(tff.stackoverflow, path)
    vocabulary = _load_vocabulary(path / "stackoverflow.word_count", read)
    return read(partial(text.encode_words, vocabulary=vocabulary))


def _read_stackexchange(path: Path) -> Iterator[Block]:
    if path.is_dir():
        folder = path
        npz_paths = sorted(path.glob("stackexchange*.npz"))
    else:
        folder = path.parent
        npz_paths = [path]
    require(bool(npz_paths), f"'{path}' must hold a stackexchange*.npz file, but has none.")
    read = partial(prepared.stackexchange, npz_paths[0])
    vocabulary = _load_vocabulary(folder / "stackexchange_vocab.txt.gz", read)
    return read(partial(text.encode_words, vocabulary=vocabulary))


def _load_vocabulary(word_list: Path, read: ReadWith) -> Vocabulary:
    """Return `NUM_WORDS` words: of a list of words if there is one, or else the most frequent.

    Fewer words in the texts are filled up, so that the number of ids does not depend on them.
    """
    if word_list.exists():
        return text.read_vocabulary(word_list, NUM_WORDS)
    words = list(text.build_vocabulary(_iter_sentences(read), NUM_WORDS).word_ids)
    fillers = [f"<unused {number}>" for number in range(NUM_WORDS - len(words))]
    return text.make_vocabulary([*words, *fillers])


def _iter_sentences(read: ReadWith) -> Iterator[str]:
    """Yield the sentences that a reader would encode, client after client."""
    buffer: list[str] = []
    for _ in read(partial(_record_sentences, buffer)):
        yield from buffer
        buffer.clear()


def _record_sentences(buffer: list[str], sentences: Sequence[str]) -> dict[str, Array]:
    """Append sentences to a buffer; with it bound this is an encoder, whose result is unused."""
    buffer.extend(sentences)
    zeros = np.zeros(len(sentences), np.uint8)
    return {"x": zeros, "y": zeros}


TEXT_SETS: dict[str, CatalogEntry] = {
    "shakespeare": CatalogEntry(
        expected_files=SHAKESPEARE_FILES,
        read=partial(_read_speeches, text.encode_characters),
        attributes=_make_character_attributes(
            "Shakespeare by role: what character comes next, at each of 80 positions"
        ),
        remotes=(
            Remote(
                f"{TFF_URL}/shakespeare.tar.bz2",
                "sha256:0285be9906cb5f268092eee4edeeacfc2af4574f2941f7cc2f08a321d7f5c707",
            ),
        ),
        defaults=NATURAL_DEFAULTS,
    ),
    "shakespeare-leaf": CatalogEntry(
        expected_files=f"LEAF's folder with train/ and test/, {SHAKESPEARE_FILES}",
        read=_read_windows,
        attributes=DatasetAttributes(
            classes=text.NUM_CHARACTER_IDS,
            tokens=True,
            about="Shakespeare by role, LEAF's task: what character follows 80 others",
        ),
        defaults=NATURAL_DEFAULTS,
    ),
    "stackoverflow": CatalogEntry(
        expected_files="the folder of stackoverflow.tar.bz2 with stackoverflow.word_count beside",
        read=_read_stackoverflow,
        attributes=_make_word_attributes(
            "StackOverflow by user: what word comes next, at each of 20 positions"
        ),
        remotes=(
            Remote(
                f"{TFF_URL}/stackoverflow.tar.bz2",
                "sha256:99eca2f8b8327a09e5fc123979df2d237acbc5e52322f6d86bf523ee47b961a2",
            ),
            Remote(
                f"{TFF_URL}/stackoverflow.word_count.tar.bz2",
                "sha256:1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c",
            ),
        ),
        defaults=NATURAL_DEFAULTS | {"split": "own"},
    ),
    "stackexchange": CatalogEntry(
        expected_files=(
            "a stackexchange_users.npz, with stackexchange_vocab.txt.gz beside, or their folder"
        ),
        read=_read_stackexchange,
        attributes=_make_word_attributes(
            "Stack Exchange by user: what word comes next, at each of 20 positions"
        ),
        defaults=NATURAL_DEFAULTS,
    ),
}
