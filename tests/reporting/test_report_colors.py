"""The report's colors in a real browser: readable in both themes, distinct for the color-blind."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from browsing import Browser, needs_chromium
from fedtailor.reporting import html
from sample_records import make_record

pytest_plugins = ["browsers"]

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the report of one run."""
    place = tmp_path_factory.mktemp("report") / "one.html"
    html.write_report([make_record()], place)
    return place


def test_colors_have_enough_contrast_in_both_themes(browser: Browser, page: Path) -> None:
    for scheme in ("light", "dark"):
        browser.open(page, scheme=scheme)
        names = [
            "ink",
            "soft",
            "accent",
            "ok",
            "wait",
            "stop",
            *(f"c{number}" for number in range(8)),
        ]
        values = {name: browser.run(f"css('--{name}')") for name in ["paper", "raised", *names]}
        for name in names:
            min_contrast = 3.0 if name.startswith("c") else 4.5
            contrast = compute_contrast(values[name], values["paper"])
            assert contrast >= min_contrast, (scheme, name)


def compute_contrast(one: str, other: str) -> float:
    """Return the contrast of two #rrggbb colors, as WCAG 2 defines it."""
    low, high = sorted(compute_luminance(color) for color in (one, other))
    return (high + 0.05) / (low + 0.05)


def compute_luminance(color: str) -> float:
    return float(np.dot((0.2126, 0.7152, 0.0722), compute_light(color)))


def compute_light(color: str) -> list[float]:
    """Return the red, green and blue light of a #rrggbb color."""
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def simulate_sight(color: str, matrix: list[list[float]]) -> list[float]:
    """Return a color in OKLab, as an eye sees it that turns light into light by `matrix`."""
    cones = np.array(TO_CONES) @ np.clip(np.array(matrix) @ compute_light(color), 0, 1)
    return list(np.array(TO_LAB) @ np.cbrt(cones))


TO_CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
TO_LAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]
# Normal sight, protanopia and deuteranopia (Machado, Oliveira and Fernandes 2009).
SIGHTS = (
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colors_are_distinct_for_the_color_blind(browser: Browser, page: Path, scheme: str) -> None:
    browser.open(page, scheme=scheme)
    colors = browser.run("Array.from({length: 8}, (_, number) => css(`--c${number}`))")
    for sight in SIGHTS:
        for one, other in itertools.combinations(colors, 2):
            assert (
                np.linalg.norm(
                    np.subtract(simulate_sight(one, sight), simulate_sight(other, sight))
                )
                > 0.06
            ), (
                one,
                other,
            )
