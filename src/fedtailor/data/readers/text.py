"""Text as numbers: characters as in the federated Shakespeare task, words as in the federated StackOverflow task.

Ids of both: 0 pads; then the vocabulary from 1; then one id for whatever is not in it, one for the beginning and one
for the end. An encoder turns one client's snippets into the columns "x" and "y"; bind its options with partial.
"""

import gzip
import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.data.readers.files import pick_label_dtype, translate_read_errors
from fedtailor.errors import require

Encoder = Callable[[Sequence[str]], dict[str, Array]]

CHARACTERS = (
    "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
)
"""The 86 characters of TensorFlow Federated's text tutorial, in its order."""

PAD, UNK, BOS, EOS = 0, len(CHARACTERS) + 1, len(CHARACTERS) + 2, len(CHARACTERS) + 3
NUM_CHARACTER_IDS = len(CHARACTERS) + 4
_CHARACTER_TABLE = np.full(129, UNK, np.uint8)
_CHARACTER_TABLE[[ord(character) for character in CHARACTERS]] = np.arange(1, len(CHARACTERS) + 1)

LINK = re.compile(r"(?:https?://|www\.)\S+")
TOKEN = re.compile(r"<URL>|[a-z0-9'_-]+|[^\sa-z0-9'_-]")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def get_character_ids(text: str) -> Array:
    """The ids of a text's characters, one each; what is not among the 86 is OTHER."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    return np.asarray(_CHARACTER_TABLE[np.minimum(codes, 128)])


def encode_characters(snippets: Sequence[str], length: int = 80) -> dict[str, Array]:
    """Every snippet between BEGIN and END, cut into pieces of `length` + 1 (the last one padded): x [n, length] is a
    piece less its last character, y [n, length] the same less its first. As TensorFlow Federated's baselines do.
    """
    _require_positive(length)
    pieces = [np.empty((0, length + 1), np.uint8)]
    for snippet in snippets:
        ids = np.concatenate([[BOS], get_character_ids(snippet), [EOS]]).astype(np.uint8)
        pieces.append(np.pad(ids, (0, -len(ids) % (length + 1))).reshape(-1, length + 1))
    return _shift_by_one(np.concatenate(pieces))


def encode_next_character(snippets: Sequence[str], length: int = 80) -> dict[str, Array]:
    """LEAF's windows: for every character of every line (its newline too), y [n] is the character and x [n, length] the
    `length` characters before it, with spaces before the line. Runs of spaces count as one.
    """
    _require_positive(length)
    x, y = [np.empty((0, length), np.uint8)], [np.empty(0, np.uint8)]
    for line in (line for snippet in snippets for line in snippet.splitlines()):
        ids = get_character_ids(" " * length + re.sub("  +", " ", line) + "\n")
        x.append(np.lib.stride_tricks.sliding_window_view(ids[:-1], length))
        y.append(ids[length:])
    return {"x": np.concatenate(x), "y": np.concatenate(y)}


class Vocabulary(NamedTuple):
    """Words by their ids, from 1; `other`, `begin` and `end` follow, so there are `size` ids with the padding's 0."""

    word_ids: dict[str, int]

    @property
    def unk_id(self) -> int:
        """The id of all other words."""
        return len(self.word_ids) + 1

    @property
    def bos_id(self) -> int:
        """The id that stands before a sentence."""
        return len(self.word_ids) + 2

    @property
    def eos_id(self) -> int:
        """The id that stands after a sentence."""
        return len(self.word_ids) + 3

    @property
    def size(self) -> int:
        """How many ids there are: the words and four more."""
        return len(self.word_ids) + 4


def make_vocabulary(words: Iterable[str]) -> Vocabulary:
    """A vocabulary of different words, in that order."""
    ids = {word: number for number, word in enumerate(dict.fromkeys(words), 1)}
    require(bool(ids), "A vocabulary must have at least one word, got none.")
    return Vocabulary(ids)


def build_vocabulary(sentences: Iterable[str], count: int) -> Vocabulary:
    """The `count` most frequent words of sentences; of equally frequent ones the alphabetically first."""
    _require_positive(count, "a vocabulary", "count")
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(sentence.split())
    return make_vocabulary(islice(sorted(counts, key=lambda word: (-counts[word], word)), count))


def read_vocabulary(path: str | Path, count: int) -> Vocabulary:
    """The first `count` words of a file with a word and its count on every line, most frequent first; .gz or plain."""
    _require_positive(count, "a vocabulary", "count")
    opened = gzip.open if str(path).endswith(".gz") else open
    words: list[str] = []
    with (
        translate_read_errors(path, "a list of words with counts"),
        opened(path, "rt", encoding="utf-8") as file,
    ):
        for line in islice(file, count):
            entry = line.split()
            good = len(entry) == 2 and entry[1].isdecimal()
            require(
                good,
                f"'{path}' must have a word and its count on every line, got {line.strip()[:40]!r}.",
            )
            words.append(entry[0])
    require(
        len(set(words)) == count,
        f"'{path}' must have {count} different words, got {len(set(words))}.",
    )
    return make_vocabulary(words)


def encode_words(
    sentences: Sequence[str], vocabulary: Vocabulary, length: int = 20
) -> dict[str, Array]:
    """Every sentence cut to `length` words: x [n, length] begins with `begin`, y [n, length] is the word that follows.

    A sentence shorter than `length` ends with `end` and is padded. As TensorFlow Federated's baselines do.
    """
    _require_positive(length)
    rows = np.full((len(sentences), length + 1), PAD, pick_label_dtype(vocabulary.size - 1))
    for row, sentence in zip(rows, sentences, strict=True):
        ids = [
            vocabulary.bos_id,
            *(
                vocabulary.word_ids.get(word, vocabulary.unk_id)
                for word in sentence.split()[:length]
            ),
            vocabulary.eos_id,
        ]
        row[: len(ids)] = ids[: length + 1]
    return _shift_by_one(rows)


def split_sentences(text: str) -> list[str]:
    """A raw text as sentences of words with single spaces between, by the rules of the federated StackOverflow set.

    HTML signs are resolved, letters made small, other than ASCII dropped, links become <URL>, and punctuation stands
    alone (but for apostrophes, hyphens and underscores). A sentence ends at a newline, or at . ! ? before a space.
    """
    plain = html.unescape(text).lower().encode("ascii", "ignore").decode()
    found = (TOKEN.findall(piece) for piece in SENTENCE_END.split(LINK.sub(" <URL> ", plain)))
    return [" ".join(words) for words in found if words]


def _shift_by_one(rows: Array) -> dict[str, Array]:
    return {"x": np.ascontiguousarray(rows[:, :-1]), "y": np.ascontiguousarray(rows[:, 1:])}


def _require_positive(value: object, name: str = "text", option: str = "length") -> None:
    good = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 1
    require(bool(good), f"{name}: {option} must be a whole number of at least 1, got {value!r}.")
