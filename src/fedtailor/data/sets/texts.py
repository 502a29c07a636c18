"""The text sets: Shakespeare's roles by character, users of StackOverflow and Stack Exchange by word."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fedtailor.data.blocks import Block
from fedtailor.data.holders import Array
from fedtailor.data.readers import leaf, prepared, text, tff
from fedtailor.data.readers.text import Encoder, Vocabulary
from fedtailor.data.sets.known import Known, Remote, tokens
from fedtailor.data.sets.pictures import TFF
from fedtailor.errors import require

WORDS = 10_000
"""How many words are known; all others are one."""

CHARACTERS = tokens(text.CHARACTER_IDS, [text.OTHER, text.BEGIN, text.END])
NATURAL = {"partition": "natural", "server_from": "people", "least": 2}


def _speeches(encode: Encoder, path: Path) -> Iterator[Block]:
    """Shakespeare from any of its files."""
    if path.suffix == ".npz":
        return prepared.shakespeare_roles(path, encode)
    if (path / "shakespeare_train.h5").exists():
        return tff.shakespeare(path, encode)
    found = sorted(path.glob("shakespeare*.npz"))
    require(bool(found), f"'{path}' must hold shakespeare_train.h5 or a shakespeare*.npz file, but has neither.")
    return prepared.shakespeare_roles(found[0], encode)


def _windows(path: Path) -> Iterator[Block]:
    """Shakespeare's windows as LEAF has them, from LEAF's own files or from texts."""
    if path.is_dir() and (path / "train").is_dir():
        return leaf.shakespeare(path)
    return _speeches(text.encode_next, path)


def _stackoverflow(path: Path) -> Iterator[Block]:
    known = _words(path, "stackoverflow.word_count", partial(tff.stackoverflow, path))
    return tff.stackoverflow(path, partial(text.encode_words, known=known))


def _stackexchange(path: Path) -> Iterator[Block]:
    folder = path if path.is_dir() else path.parent
    found = sorted(folder.glob("stackexchange*.npz")) if path.is_dir() else [path]
    require(bool(found), f"'{path}' must hold a stackexchange*.npz file, but has none.")
    known = _words(folder, "stackexchange_vocab.txt.gz", partial(prepared.stackexchange, found[0]))
    return prepared.stackexchange(found[0], partial(text.encode_words, known=known))


def _words(folder: Path, listed: str, read: Callable[[Encoder], Iterator[Block]]) -> Vocabulary:
    """The most frequent words: as a list beside the texts says, or as they are counted in them."""
    if (folder / listed).exists():
        return text.read_vocabulary(folder / listed, WORDS)
    words = text.most_frequent(_sentences(read), WORDS).ids
    return text.vocabulary([*words, *(f"<unused {number}>" for number in range(WORDS - len(words)))])


def _sentences(read: Callable[[Encoder], Iterator[Block]]) -> Iterator[str]:
    """What a reader would encode, client after client."""
    held: list[str] = []
    for _ in read(partial(_kept, held)):
        yield from held
        held.clear()


def _kept(held: list[str], sentences: Sequence[str]) -> dict[str, Array]:
    """An encoder that only remembers."""
    held.extend(sentences)
    return {"x": np.zeros(len(sentences), np.uint8), "y": np.zeros(len(sentences), np.uint8)}


SPEECHES = "shakespeare.tar.bz2 or its folder, or a shakespeare_roles.npz"
TEXTS: dict[str, Known] = {
    "shakespeare": Known(
        about="Shakespeare by role: what character comes next, at each of 80 places",
        wanted=SPEECHES,
        read=partial(_speeches, text.encode_characters),
        attributes=CHARACTERS,
        remotes=(
            Remote(
                f"{TFF}/shakespeare.tar.bz2", "sha256:0285be9906cb5f268092eee4edeeacfc2af4574f2941f7cc2f08a321d7f5c707"
            ),
        ),
        defaults=NATURAL,
    ),
    "shakespeare-leaf": Known(
        about="Shakespeare by role, LEAF's task: what character follows 80 others",
        wanted=f"LEAF's folder with train/ and test/, {SPEECHES}",
        read=_windows,
        attributes={"classes": text.CHARACTER_IDS, "tokens": True},
        defaults=NATURAL,
    ),
    "stackoverflow": Known(
        about="StackOverflow by user: what word comes next, at each of 20 places",
        wanted="the folder of stackoverflow.tar.bz2 with stackoverflow.word_count beside",
        read=_stackoverflow,
        attributes=tokens(WORDS + 4, [WORDS + 1, WORDS + 2, WORDS + 3]),
        remotes=(
            Remote(
                f"{TFF}/stackoverflow.tar.bz2",
                "sha256:99eca2f8b8327a09e5fc123979df2d237acbc5e52322f6d86bf523ee47b961a2",
            ),
            Remote(
                f"{TFF}/stackoverflow.word_count.tar.bz2",
                "sha256:1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c",
            ),
        ),
        defaults=NATURAL | {"split": "own"},
    ),
    "stackexchange": Known(
        about="Stack Exchange by user: what word comes next, at each of 20 places",
        wanted="a stackexchange_users.npz, with stackexchange_vocab.txt.gz beside, or their folder",
        read=_stackexchange,
        attributes=tokens(WORDS + 4, [WORDS + 1, WORDS + 2, WORDS + 3]),
        defaults=NATURAL,
    ),
}
