"""Text as ids: characters as in federated Shakespeare, words as in federated StackOverflow.

Ids of both kinds: 0 is padding, the vocabulary starts at 1, and three ids follow it, for anything
unknown, for the beginning and for the end of a text. An encoder turns the texts of one client into
the columns "x" and "y"; `functools.partial` binds its options.
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
from fedtailor.errors import is_number, require

Encoder = Callable[[Sequence[str]], dict[str, Array]]
"""Turns the texts of one client into its columns "x" and "y"."""

CHARACTERS = (
    "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
)
"""The 86 characters of TensorFlow Federated's text tutorial, in its order."""

PAD = 0
UNK = len(CHARACTERS) + 1
BOS = len(CHARACTERS) + 2
EOS = len(CHARACTERS) + 3
NUM_CHARACTER_IDS = len(CHARACTERS) + 4

# [code points] id of each ASCII character; the last entry stands for all code points from 128.
_CHARACTER_TABLE = np.full(129, UNK, np.uint8)
_CHARACTER_TABLE[[ord(character) for character in CHARACTERS]] = np.arange(1, len(CHARACTERS) + 1)

LINK = re.compile(r"(?:https?://|www\.)\S+")
TOKEN = re.compile(r"<URL>|[a-z0-9'_-]+|[^\sa-z0-9'_-]")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def get_character_ids(text: str) -> Array:
    """Return the id of every character, uint8 [characters]; those not in `CHARACTERS` are UNK."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    return np.asarray(_CHARACTER_TABLE[np.minimum(codes, 128)])


def encode_characters(snippets: Sequence[str], length: int = 80) -> dict[str, Array]:
    """Encode snippets for predicting, at every position, the next character.

    Each snippet goes between BOS and EOS and is cut into pieces of `length` + 1 ids, the last of
    them padded. "x" [n, length] is a piece without its last id, "y" [n, length] the same piece
    without its first, as in TensorFlow Federated's baselines.
    """
    _require_positive("text", "length", length)
    pieces = [np.empty((0, length + 1), np.uint8)]
    for snippet in snippets:
        ids = np.concatenate([[BOS], get_character_ids(snippet), [EOS]]).astype(np.uint8)
        num_padding = -len(ids) % (length + 1)
        pieces.append(np.pad(ids, (0, num_padding)).reshape(-1, length + 1))
    return _shift_by_one(np.concatenate(pieces))


def encode_next_character(snippets: Sequence[str], length: int = 80) -> dict[str, Array]:
    """Encode snippets for predicting a character from a window before it, as LEAF does.

    For every character of a line, its newline included, "y" [n] is the character and
    "x" [n, length] the `length` characters before it, with spaces before the line. Runs of spaces
    count as one.
    """
    _require_positive("text", "length", length)
    x = [np.empty((0, length), np.uint8)]
    y = [np.empty(0, np.uint8)]
    for snippet in snippets:
        for line in snippet.splitlines():
            ids = get_character_ids(" " * length + re.sub("  +", " ", line) + "\n")
            x.append(np.lib.stride_tricks.sliding_window_view(ids[:-1], length))
            y.append(ids[length:])
    return {"x": np.concatenate(x), "y": np.concatenate(y)}


class Vocabulary(NamedTuple):
    """Ids of words, from 1. The unknown word, the beginning and the end have the next three ids."""

    word_ids: dict[str, int]

    @property
    def unk_id(self) -> int:
        """The id of every word that is not in the vocabulary."""
        return len(self.word_ids) + 1

    @property
    def bos_id(self) -> int:
        """The id at the beginning of a sentence."""
        return len(self.word_ids) + 2

    @property
    def eos_id(self) -> int:
        """The id at the end of a sentence."""
        return len(self.word_ids) + 3

    @property
    def size(self) -> int:
        """The number of ids: the words, three special ids, and padding."""
        return len(self.word_ids) + 4


def make_vocabulary(words: Iterable[str]) -> Vocabulary:
    """Return a vocabulary of the words in their order, without those that repeat."""
    word_ids = {word: word_id for word_id, word in enumerate(dict.fromkeys(words), 1)}
    require(bool(word_ids), "A vocabulary must have at least one word, got none.")
    return Vocabulary(word_ids)


def build_vocabulary(sentences: Iterable[str], count: int) -> Vocabulary:
    """Return the `count` most frequent words of the sentences, ties in alphabetical order."""
    _require_positive("a vocabulary", "count", count)
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(sentence.split())
    most_frequent_first = sorted(counts, key=lambda word: (-counts[word], word))
    return make_vocabulary(most_frequent_first[:count])


def read_vocabulary(path: str | Path, count: int) -> Vocabulary:
    """Return the first `count` words of a file, gzipped or not.

    Each of its lines has a word and its count, most frequent words first.
    """
    _require_positive("a vocabulary", "count", count)
    open_text = gzip.open if str(path).endswith(".gz") else open
    words: list[str] = []
    with (
        translate_read_errors(path, "a list of words with counts"),
        open_text(path, "rt", encoding="utf-8") as file,
    ):
        for line in islice(file, count):
            fields = line.split()
            is_entry = len(fields) == 2 and fields[1].isdecimal()
            require(
                is_entry,
                f"'{path}' must have a word and its count on every line, "
                f"got {line.strip()[:40]!r}.",
            )
            words.append(fields[0])
    num_words = len(set(words))
    require(num_words == count, f"'{path}' must have {count} different words, got {num_words}.")
    return make_vocabulary(words)


def encode_words(
    sentences: Sequence[str], vocabulary: Vocabulary, length: int = 20
) -> dict[str, Array]:
    """Encode sentences for predicting, at every position, the next word.

    As in TensorFlow Federated's baselines, longer sentences are cut, and shorter ones get the id
    of the end and padding.

    Args:
        sentences: Words with spaces between them.
        vocabulary: The words that have ids of their own.
        length: Number of positions.

    Returns:
        "x" [n, length], which starts with the id of the beginning, and "y" [n, length], the word
        that follows at each position.
    """
    _require_positive("text", "length", length)
    word_ids = vocabulary.word_ids
    unk_id = vocabulary.unk_id
    rows = np.full((len(sentences), length + 1), PAD, pick_label_dtype(vocabulary.size - 1))
    for row, sentence in zip(rows, sentences, strict=True):
        sentence_ids = [word_ids.get(word, unk_id) for word in sentence.split()[:length]]
        ids = [vocabulary.bos_id, *sentence_ids, vocabulary.eos_id][: length + 1]
        row[: len(ids)] = ids
    return _shift_by_one(rows)


def split_sentences(text: str) -> list[str]:
    """Split raw text into sentences of words with single spaces, as federated StackOverflow has it.

    HTML entities are resolved, letters become lowercase, non-ASCII characters are dropped, links
    become <URL>, and punctuation stands alone (but for apostrophes, hyphens and underscores).
    A sentence ends at a newline, or at . ! ? before a space.
    """
    plain = html.unescape(text).lower().encode("ascii", "ignore").decode()
    sentences = []
    for sentence in SENTENCE_END.split(LINK.sub(" <URL> ", plain)):
        words = TOKEN.findall(sentence)
        if words:
            sentences.append(" ".join(words))
    return sentences


def require_sentence_limit(name: str, max_sentences: int | None) -> None:
    """Refuse a number of sentences for each client that is neither None (all) nor at least 1."""
    if max_sentences is None:
        return
    require(
        is_number(max_sentences, integer=True) and max_sentences >= 1,
        f"{name}: max_sentences must be None or a whole number of at least 1, "
        f"got {max_sentences!r}.",
    )


def _shift_by_one(rows: Array) -> dict[str, Array]:
    return {"x": np.ascontiguousarray(rows[:, :-1]), "y": np.ascontiguousarray(rows[:, 1:])}


def _require_positive(name: str, option: str, value: int) -> None:
    require(
        is_number(value, integer=True) and value >= 1,
        f"{name}: {option} must be a whole number of at least 1, got {value!r}.",
    )
