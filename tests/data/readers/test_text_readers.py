"""Characters and words, on texts small enough to work out by hand."""

import gzip
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtailor.data.examples import Array
from fedtailor.data.readers import text
from fedtailor.errors import InputError

KNOWN = text.make_vocabulary(["the", "cat", "sat"])  # 1, 2, 3; other 4, begin 5, end 6


def letters(ids: Array) -> str:
    """Ids written out: _ pads, * is any other character, < begins and > ends."""
    signs = "_" + text.CHARACTERS + "*<>"
    return "".join(signs[number] for number in ids)


def test_there_are_90_ids_of_characters() -> None:
    assert text.NUM_CHARACTER_IDS == 90
    assert (text.PAD, text.UNK, text.BOS, text.EOS) == (0, 87, 88, 89)
    assert text.get_character_ids("dh\r").tolist() == [1, 2, 86]
    assert sorted(text.get_character_ids(text.CHARACTERS).tolist()) == list(range(1, 87))
    assert (
        text.get_character_ids("a~\u00e9\u20ac\U0001f600\ud800a").tolist()[1:-1] == [87] * 5
    )  # one id per character


def test_characters_are_cut_into_pieces_with_the_next_as_target() -> None:
    found = text.encode_characters(["ABCD", "", "HO"], length=3)
    assert [letters(row) for row in found["x"]] == ["<AB", "D>_", "<>_", "<HO"]
    assert [letters(row) for row in found["y"]] == ["ABC", ">__", ">__", "HO>"]
    assert found["x"].dtype == found["y"].dtype == np.uint8
    assert text.encode_characters([], length=3)["x"].shape == (0, 3)


@given(st.lists(st.text(text.CHARACTERS, max_size=40), max_size=5), st.integers(1, 12))
def test_no_character_is_lost(snippets: list[str], length: int) -> None:
    found = text.encode_characters(snippets, length)
    rows = np.concatenate([found["x"], found["y"][:, -1:]], axis=1)  # each piece as it was cut
    assert letters(rows.ravel()).replace("_", "") == "".join(
        f"<{snippet}>" for snippet in snippets
    ).replace("_", "")
    np.testing.assert_array_equal(found["x"][:, 1:], found["y"][:, :-1])


def test_leaf_slides_a_window_over_every_line() -> None:
    found = text.encode_next_character(["Go   on\nA", "B"], length=4)
    pairs = [(letters(x), letters(y[None])) for x, y in zip(found["x"], found["y"], strict=True)]
    first = [
        ("    ", "G"),
        ("   G", "o"),
        ("  Go", " "),
        (" Go ", "o"),
        ("Go o", "n"),
        ("o on", "\n"),
    ]
    assert pairs == [*first, ("    ", "A"), ("   A", "\n"), ("    ", "B"), ("   B", "\n")]
    assert text.encode_next_character([], length=4)["x"].shape == (0, 4)


def test_words_have_the_next_as_target() -> None:
    found = text.encode_words(["the cat sat", "a cat", "the cat sat the cat", ""], KNOWN, length=3)
    assert found["x"].tolist() == [[5, 1, 2], [5, 4, 2], [5, 1, 2], [5, 6, 0]]
    assert found["y"].tolist() == [[1, 2, 3], [4, 2, 6], [1, 2, 3], [6, 0, 0]]
    assert found["x"].dtype == np.uint8


def test_the_ids_of_words_fit_their_type() -> None:
    large = text.make_vocabulary(str(number) for number in range(9996))
    assert large.size == 10_000
    found = text.encode_words(["9995 unheard"], large, length=4)
    assert found["x"].dtype == np.int16
    assert found["x"].tolist() == [[9998, 9996, 9997, 9999]]
    assert found["y"].tolist() == [[9996, 9997, 9999, 0]]


def test_the_most_frequent_words() -> None:
    known = text.build_vocabulary(["b d c", "c b", "a c"], 3)
    assert known.word_ids == {"c": 1, "b": 2, "a": 3}  # a and d are as frequent; a comes first
    assert text.build_vocabulary(iter(["b"]), 3).word_ids == {"b": 1}


@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_vocabulary_from_a_file(tmp_path: Path, end: str) -> None:
    raw = b"the\t9\ncat 5\nsat 4\nmat 1\n"
    path = tmp_path / f"word_count{end}"
    path.write_bytes(gzip.compress(raw) if end else raw)
    assert text.read_vocabulary(path, 3) == KNOWN
    with pytest.raises(InputError, match=r"word_count.*must have 5 different words, got 4"):
        text.read_vocabulary(path, 5)


def test_bad_vocabularies(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("the 3\njust a line\n")
    with pytest.raises(
        InputError, match="words' must have a word and its count on every line, got 'just a line'"
    ):
        text.read_vocabulary(path, 2)
    path.write_bytes("caf\xe9 3\n".encode("latin-1"))
    with pytest.raises(InputError, match="words' cannot be read as a list of words"):
        text.read_vocabulary(path, 1)
    with pytest.raises(InputError, match="There is no file"):
        text.read_vocabulary(tmp_path / "none", 1)
    with pytest.raises(InputError, match="count must be a whole number of at least 1, got 0"):
        text.read_vocabulary(path, 0)
    with pytest.raises(InputError, match="at least one word"):
        text.build_vocabulary([], 3)


def test_sentences() -> None:
    raw = "It's 3.5 &lt; 4, isn't it? See https://a.b/c?d for co-op caf\u00e9.\nNew line"
    assert text.split_sentences(raw) == [
        "it's 3 . 5 < 4 , isn't it ?",
        "see <URL> for co-op caf .",
        "new line",
    ]
    assert text.split_sentences(" \n ") == []


@pytest.mark.parametrize("length", [0, -1, True, 2.0, "2"])
def test_bad_lengths(length: Any) -> None:
    for encode in (
        text.encode_characters,
        text.encode_next_character,
        partial(text.encode_words, vocabulary=KNOWN),
    ):
        with pytest.raises(InputError, match="length must be a whole number of at least 1"):
            encode(["a"], length=length)
