"""Rendered characters: geometry in closed form, fonts of every kind, and likeness to real
handwriting.
"""

import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ImageFont

from fedtailor.data import load_digits
from fedtailor.data.examples import Array
from fedtailor.data.server_data import glyphs
from fedtailor.data.server_data.rendered import (
    EMNIST_FILL,
    Layout,
    add_lowercase,
    render_characters,
)
from fedtailor.data.sources import CATALOG
from fedtailor.errors import InputError

EMNIST = [name for name in CATALOG if name.startswith("emnist")]
LETTERS = {name: tuple(CATALOG[name].attributes.labels) for name in ("mnist", "femnist", *EMNIST)}
SOME = ("0", "I", "L", "W", "g", "x")


@pytest.fixture
def font(tmp_path: Path) -> Path:
    """A font file: the one that comes with Pillow, of the family Aileron."""
    held = ImageFont.load_default(20)
    assert isinstance(held, ImageFont.FreeTypeFont)
    assert isinstance(held.path, BytesIO)
    path = tmp_path / "fonts" / "some.ttf"
    path.parent.mkdir()
    path.write_bytes(held.path.getvalue())
    return path


@pytest.fixture
def alone(font: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system on which this font file is in the user's font folder."""
    monkeypatch.setattr(Path, "home", lambda: font.parent.parent)
    monkeypatch.setenv("XDG_DATA_HOME", str(font.parent.parent))
    monkeypatch.setenv("XDG_DATA_DIRS", str(font.parent / "none"))
    return font


def moments(image: Array) -> tuple[Array, Array]:
    """Where the ink's mean is, from the image's middle, and its covariance: (down, right), in
    pixels.
    """
    ink = image.astype(float) / image.sum()
    places = np.indices(ink.shape).reshape(2, -1) - (np.array(ink.shape)[:, None] - 1) / 2
    mean = places @ ink.ravel()
    return mean, (places * ink.ravel()) @ places.T - np.outer(mean, mean)


def extent(image: Array) -> tuple[int, int, int, int]:
    """Rows above, below, left and right of the ink."""
    down, right = np.flatnonzero((image > 60).any(1)), np.flatnonzero((image > 60).any(0))
    return down[0], len(image) - 1 - down[-1], right[0], len(image) - 1 - right[-1]


def test_the_papers_setting_has_15_different_images_of_each_character() -> None:
    x, y = render_characters(LETTERS["emnist-balanced"])
    assert x.shape == (705, 1, 28, 28)
    assert (x.dtype.name, y.dtype.name) == ("uint8", "int64")
    np.testing.assert_array_equal(y, np.repeat(np.arange(47), 15))
    assert len(np.unique(x.reshape(705, -1), axis=0)) == 705
    assert (x.max(axis=(1, 2, 3)) == 255).all()
    assert (np.median(x, axis=(1, 2, 3)) == 0).all()
    assert max(np.abs(moments(image)[0]).max() for image in x[:, 0]) < 4


def test_label_sets_have_as_many_characters_as_classes() -> None:
    counts = {name: len(set(characters)) for name, characters in LETTERS.items()}
    assert counts == {
        "mnist": 10,
        "emnist-digits": 10,
        "emnist-mnist": 10,
        "emnist-letters": 26,
        "emnist-balanced": 47,
        "emnist-bymerge": 47,
        "emnist-byclass": 62,
        "femnist": 62,
    }
    assert [LETTERS["femnist"][label] for label in (9, 10, 35, 36, 61)] == ["9", "A", "Z", "a", "z"]
    assert "".join(LETTERS["emnist-balanced"][36:]) == "abdefghnqrt"


def test_both_cases_join_where_the_lower_case_is_no_class() -> None:
    assert add_lowercase(("1", "A", "B", "b")) == ("1", "Aa", "B", "b")
    assert add_lowercase(LETTERS["femnist"]) == LETTERS["femnist"]
    assert sum(len(name) == 2 for name in add_lowercase(LETTERS["emnist-balanced"])) == 15


def test_a_class_of_two_characters_has_the_images_of_both() -> None:
    x, y = render_characters(("Aa", "B"))
    apart, _ = render_characters(("A", "a", "B"))
    np.testing.assert_array_equal(x, apart)
    np.testing.assert_array_equal(y, np.repeat([0, 1], [30, 15]))


def test_dark_is_the_complement_and_the_same_is_rendered_again() -> None:
    x, y = render_characters(SOME)
    for _ in range(2):
        dark, labels = render_characters(SOME, is_dark=True)
        np.testing.assert_array_equal(dark, 255 - x)
        np.testing.assert_array_equal(labels, y)


@pytest.mark.parametrize("points", [100, 120, 150])
@pytest.mark.parametrize("side", [28, 64])
def test_a_bar_has_the_area_of_its_height_in_points_and_the_pens_width(
    points: float, side: int
) -> None:
    (image,), _ = render_characters(
        ("I",), Layout(side, rotations=(0,), points=(points,)), fonts=("rowmans",)
    )
    high, pen = side * (points / 144) * 0.7, side * 0.1  # capitals are 0.7 em
    np.testing.assert_allclose(image.sum() / 255, high * pen + np.pi * pen**2 / 4, rtol=0.03)
    assert abs(28 / side * (side - sum(extent(image[0])[:2]) - high - pen)) < 1.5


def test_the_pen_is_as_wide_where_characters_fill_the_image() -> None:
    layout = Layout(rotations=(0,), points=(120,), pen=0.15, fill=EMNIST_FILL)
    (image,), _ = render_characters(("I",), layout, fonts=("rowmans",))
    pen = 28 * 0.15
    np.testing.assert_allclose(image.sum() / 255, (24 - pen) * pen + np.pi * pen**2 / 4, rtol=0.03)


@pytest.mark.parametrize("angle", [-20, -10, 0, 10, 20, 45])
@pytest.mark.parametrize("built_in", [True, False])
def test_a_bar_leans_to_the_left_by_the_angle(angle: float, built_in: bool, font: Path) -> None:
    fonts = ("rowmans",) if built_in else (str(font),)
    layout = Layout(rotations=(angle,), points=(120,))
    (image,), _ = render_characters(("I",), layout, fonts=fonts)
    (tall, lean), (_, wide) = moments(image[0])[1]
    np.testing.assert_allclose(np.degrees(np.arctan2(2 * lean, tall - wide) / 2), angle, atol=1)


def test_sizes_are_in_proportion() -> None:
    x, _ = render_characters(("S",), Layout(rotations=(10,), points=(60, 90, 120)))
    spread = np.array([np.trace(moments(image)[1]) ** 0.5 for image in x[:, 0]])
    np.testing.assert_allclose(spread / spread[-1], [0.5, 0.75, 1], atol=0.015)


def test_fill_makes_all_characters_equally_large_and_centers_their_bounding_boxes(
    font: Path,
) -> None:
    x, _ = render_characters(SOME, Layout(fill=EMNIST_FILL), fonts=("cursive", str(font)))
    for number, image in enumerate(x[:, 0]):
        above, below, left, right = extent(image)
        assert abs(above - below) <= 1
        assert abs(left - right) <= 1
        assert (
            abs(28 - min(above + below, left + right) - 24 * (100, 110, 120)[number % 3] / 120)
            <= 1.5
        )


def test_a_character_that_would_not_fit_is_made_smaller_and_not_cut() -> None:
    x, _ = render_characters(("W",), Layout(points=(100, 200, 300)))
    ring = np.ones((28, 28), bool)
    ring[1:-1, 1:-1] = False
    smaller, largest = x[0::3, 0], x[2::3, 0]
    assert not smaller[:, ring].any()
    assert all(
        28 - min(sum(extent(image)[:2]), sum(extent(image)[2:])) in (27, 28) for image in largest
    )
    small, large = (
        np.array([np.trace(moments(image)[1]) for image in images]) for images in (smaller, largest)
    )
    np.testing.assert_allclose(small / large, 1 / 9, rtol=0.1)


def test_rendered_digits_are_like_handwritten_ones_only_as_they_are() -> None:
    real, truth = load_digits()  # white on black, 8 x 8
    x, y = render_characters(LETTERS["mnist"], Layout(side=8, fill=EMNIST_FILL))

    def likeness(images: Array) -> float:
        means = np.stack([images[y == label].mean(0).ravel() for label in range(10)])
        means -= means.mean(1, keepdims=True)
        return float(
            (
                np.argmax(real @ (means / np.linalg.norm(means, axis=1)[:, None]).T, 1) == truth
            ).mean()
        )

    others = (255 - x, x[..., ::-1], x[:, :, ::-1], x.swapaxes(2, 3))
    assert likeness(x) > 0.5
    assert max(map(likeness, others)) < 0.4


def test_some_of_each_class_are_drawn_without_repeating() -> None:
    every, _ = render_characters(SOME)
    x, y = render_characters(SOME, per_class=6, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(y, np.repeat(np.arange(len(SOME)), 6))
    assert len(np.unique(x.reshape(len(x), -1), axis=0)) == len(x)
    for image, label in zip(x, y, strict=True):
        assert (every[15 * label : 15 * (label + 1)] == image).all(axis=(1, 2, 3)).any()
    again, other = (
        render_characters(SOME, per_class=6, rng=np.random.default_rng(seed))[0] for seed in (0, 1)
    )
    np.testing.assert_array_equal(again, x)
    assert (other != x).any()


def test_what_two_fonts_share_comes_once() -> None:
    _, y = render_characters(("A", "0"), fonts=("cursive", "rowmans"))  # their digits are the same
    np.testing.assert_array_equal(np.bincount(y), [30, 15])
    with pytest.raises(
        InputError, match=r"at most 15, as .* give 15 different images of '0', got 20; name more"
    ):
        render_characters(
            ("A", "0"), fonts=("cursive", "rowmans"), per_class=20, rng=np.random.default_rng(0)
        )


@pytest.mark.parametrize("style", glyphs.STYLES)
def test_every_style_has_every_character_upright(style: str) -> None:
    layout = Layout(side=16, rotations=(0,), points=(120,))
    x, _ = render_characters(LETTERS["femnist"], layout, fonts=(style,))
    assert len(np.unique(x.reshape(62, -1), axis=0)) > 58
    seven = x[7, 0].astype(float)
    assert seven[:8].sum() > seven[8:].sum()


@pytest.mark.parametrize("name", ["Aileron", "aileron regular"])
def test_an_installed_family_is_found_by_its_own_name(name: str, alone: Path) -> None:
    (alone.parent / "broken.otf").write_bytes(b"no font")
    np.testing.assert_array_equal(
        render_characters(SOME, fonts=(name,))[0], render_characters(SOME, fonts=(str(alone),))[0]
    )


@pytest.mark.parametrize("name", ["Ailero", "Aileron Bold", "DejaVu Sans", "some"])
def test_no_other_family_is_taken_instead(name: str, alone: Path) -> None:
    with pytest.raises(
        InputError, match=rf"no font '{name}' is installed; install it, or name a \.ttf .* cursive"
    ):
        render_characters(SOME, fonts=(name,))


def test_characters_and_fonts_that_are_not_there_are_named(font: Path) -> None:
    (font.parent / "broken.ttf").write_bytes(b"no font")
    cases = [
        ("é", "cursive", "the style cursive has no character 'é'"),
        (" ", "cursive", "the character ' ' leaves no ink"),
        ("\u4e00", str(font), "has no character '\u4e00'"),
        (" ", str(font), "the character ' ' leaves no ink"),
        ("A", str(font.parent / "other.ttf"), "there is no font file"),
        ("A", str(font.parent / "broken.ttf"), "cannot be read as a font"),
    ]
    for character, name, sentence in cases:
        with pytest.raises(InputError) as problem:
            render_characters((character,), fonts=(name,))
        assert sentence in str(problem.value)


@pytest.mark.parametrize("package", ["HersheyFonts", "PIL.Image"])
def test_a_missing_package_is_named_with_its_extra(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    glyphs._load_glyphs.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        InputError, match=rf"needs the package {package[:3]}\w*: pip install 'fedtailor\[render\]'"
    ):
        render_characters(("A",))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"classes": ()}, "classes must be strings"),
        ({"classes": ("A", "")}, "classes must be strings"),
        ({"classes": ("A", "BA")}, "a character must be in one class"),
        ({"side": 4}, "side must be a whole number of at least 8"),
        ({"fonts": "cursive"}, "fonts must be a sequence"),
        ({"rotations": ()}, "rotations must be"),
        ({"rotations": (float("nan"),)}, "rotations must be"),
        ({"points": (100, 0)}, "points must be"),
        ({"pen": 0.5}, "pen must be a number from 0.01 to 0.3"),
        ({"fill": 1.1}, "fill must be a number from 0.5 to 1"),
        ({"per_class": 0}, "per_class must be a whole number of at least 1"),
        ({"per_class": 16}, "per_class must be at most 15"),
        ({"per_class": 5}, "rng must be a generator where per_class is 5"),
    ],
)
def test_what_cannot_be_rendered_is_refused(options: dict[str, Any], sentence: str) -> None:
    layout = {name: value for name, value in options.items() if name in Layout._fields}
    others = {name: value for name, value in options.items() if name not in layout}
    given: dict[str, Any] = {"classes": ("A", "B"), "layout": Layout(**layout)} | others
    with pytest.raises(InputError) as problem:
        render_characters(**given)
    assert sentence in str(problem.value)
    assert str(problem.value).startswith("rendered: ")
