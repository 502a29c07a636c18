"""Structural similarity against scikit-image's figures, a plain loop and SciPy's filters; mean
images by a loop.
"""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from fedtailor import digits
from fedtailor.data import FederatedDataset, from_arrays
from fedtailor.errors import InputError
from fedtailor.inspection.statistics import image_similarity, mean_image_ssim, ssim

Image = NDArray[np.float64]

ROW, COLUMN = np.mgrid[:13, :12]
ONE = ((37 * ROW + 11 * COLUMN * COLUMN) % 256).astype(np.uint8)
OTHER = ((53 * ROW * COLUMN + 7 * COLUMN + 90) % 256).astype(np.uint8)
COLOURS = np.stack([ONE, OTHER, 255 - ONE]), np.stack([OTHER // 3, ONE, OTHER // 2 + ONE // 2])


@pytest.mark.parametrize(
    ("one", "other", "data_range", "expected"),
    [
        (ONE, OTHER, 255, -0.2050507789129282),
        (ONE, ONE // 2, 255, 0.6394541908642338),
        (ONE / 255, np.clip(ONE / 255 + 0.1, 0, 1), 1, 0.9842326970272562),
        (*COLOURS, 255, -0.2824164916998406),
    ],
    ids=["apart", "darker", "floating", "color"],
)
def test_figures_are_those_of_scikit_image(
    one: Image, other: Image, data_range: float, expected: float
) -> None:
    """structural_similarity(gaussian_weights=True, sigma=1.5, use_sample_covariance=False), version
    0.26.0.
    """
    assert ssim(one, other, data_range=data_range) == pytest.approx(expected, abs=1e-12)


def by_loop(one: Image, other: Image, data_range: float, window: int) -> float:
    """Wang et al.'s formula, window by window."""
    away = np.arange(window) - window // 2
    weights = np.exp(-(away[:, None] ** 2 + away**2) / (2 * 1.5**2))
    weights /= weights.sum()
    c1, c2, found = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2, []
    for row in range(one.shape[0] - window + 1):
        for column in range(one.shape[1] - window + 1):
            a, b = (image[row : row + window, column : column + window] for image in (one, other))
            m, n = (weights * a).sum(), (weights * b).sum()
            var_a, var_b = (weights * (a - m) ** 2).sum(), (weights * (b - n) ** 2).sum()
            both = (weights * (a - m) * (b - n)).sum()
            found.append(
                (2 * m * n + c1) * (2 * both + c2) / ((m * m + n * n + c1) * (var_a + var_b + c2))
            )
    return float(np.mean(found))


@pytest.mark.parametrize("window", [11, 7, 3, 1])
def test_it_is_the_formula_window_by_window(window: int) -> None:
    draws = np.random.default_rng(0)
    one, other = draws.normal(size=(2, 14, 17))
    expected = by_loop(one, other, 2.5, window)
    assert ssim(one, other, data_range=2.5, window=window) == pytest.approx(expected, abs=1e-12)


def smooth(image: Image) -> Image:
    return np.asarray(ndimage.gaussian_filter(image, 1.5, truncate=3.5))


def test_it_is_what_gaussian_filters_give() -> None:
    draws = np.random.default_rng(1)
    a, b = draws.random((2, 30, 24))
    m, n = smooth(a), smooth(b)
    c1, c2 = 0.01**2, 0.03**2
    alike = (2 * m * n + c1) * (2 * (smooth(a * b) - m * n) + c2)
    whole = alike / ((m * m + n * n + c1) * (smooth(a * a) - m * m + smooth(b * b) - n * n + c2))
    assert ssim(a, b, data_range=1) == pytest.approx(whole[5:-5, 5:-5].mean(), abs=1e-10)


def test_an_image_is_like_itself_and_likeness_is_mutual() -> None:
    draws = np.random.default_rng(2)
    one, other = draws.random((2, 3, 16, 12))
    assert ssim(one, one, data_range=1) == pytest.approx(1)
    assert ssim(one, other, data_range=1) == pytest.approx(ssim(other, one, data_range=1))
    assert ssim(255 * one, 255 * other, data_range=255) == pytest.approx(
        ssim(one, other, data_range=1)
    )
    assert ssim(one, other, data_range=1) < 0.5
    each = [ssim(a, b, data_range=1) for a, b in zip(one, other, strict=True)]
    assert ssim(one, other, data_range=1) == pytest.approx(np.mean(each))


@pytest.mark.parametrize(
    ("shape", "other", "options", "words"),
    [
        ((12, 12), (12, 13), {}, "two images of one shape"),
        ((2, 3, 12, 12), (2, 3, 12, 12), {}, "two images of one shape"),
        ((12, 10), (12, 10), {}, "must fit"),
        ((12, 12), (12, 12), {"window": 4}, "odd"),
        ((12, 12), (12, 12), {"data_range": 0.0}, "data_range"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    shape: tuple[int, ...], other: tuple[int, ...], options: dict[str, float], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        ssim(np.zeros(shape), np.zeros(other), **({"data_range": 1.0} | options))  # type: ignore[arg-type]


def images(x: NDArray[np.generic], scale: float = 1.0, server: int = 9) -> FederatedDataset:
    """Three clients' images, and the server's, which come first."""
    whose = np.arange(len(x) - server) % 3
    own = (x[:server], np.zeros(server, np.int64)) if server else None
    return from_arrays(x[server:], np.zeros(len(whose), np.int64), whose, server=own, scale=scale)


def mean_by_loop(data: FederatedDataset, client: int) -> Image:
    """The plain mean of a client's train images, one by one."""
    rows = data.clients.splits["train"].get_rows(client)
    total = np.zeros(data.example_spec.shape)
    for row in rows:
        total = total + data.clients.x[row] * data.scale
    return np.asarray(total / len(rows))


@pytest.mark.parametrize(("shape", "side"), [((3, 12, 15), 11), ((1, 8, 9), 7), ((9, 10), 9)])
def test_mean_images_are_compared(
    shape: tuple[int, ...], side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_similarity, "BLOCK_BYTES", 5 * np.prod(shape))  # five images a block
    draws = np.random.default_rng(3)
    data = images(draws.integers(0, 256, (60, *shape), np.uint8), 1 / 255)
    found = mean_image_ssim(data)
    assert found is not None
    assert data.server is not None
    assert (found.window, found.data_range) == (side, 1.0)
    own = (data.server.x / 255).mean(axis=0)
    expected = [
        ssim(own, mean_by_loop(data, client), data_range=1, window=side) for client in range(3)
    ]
    np.testing.assert_allclose(found.clients, expected, atol=1e-12)
    assert found.mean == pytest.approx(sum(expected) / 3)
    assert found.variance == pytest.approx(sum((each - found.mean) ** 2 for each in expected) / 3)
    chosen = mean_image_ssim(data, np.array([2, 0]))
    assert chosen is not None
    np.testing.assert_allclose(chosen.clients, [expected[2], expected[0]], atol=1e-12)


def test_a_memory_map_gives_the_same(tmp_path: Path) -> None:
    x = np.random.default_rng(4).integers(0, 17, (40, 1, 8, 8), np.uint8)
    np.save(tmp_path / "x.npy", x)
    mapped, held = images(np.load(tmp_path / "x.npy", mmap_mode="r"), 1 / 16), images(x, 1 / 16)
    one, other = mean_image_ssim(mapped), mean_image_ssim(held)
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.clients, other.clients)


def test_the_range_is_what_the_scale_says_or_what_occurs() -> None:
    x = np.random.default_rng(5).integers(0, 200, (40, 1, 8, 8), np.uint8)
    x[20, 0, 0, 0], x[0, 0, 0, 0] = 200, 0
    for scale, expected in ((1 / 255, 1.0), (1 / 100, 2.0), (1.0, 200.0)):
        found = mean_image_ssim(images(x, scale))
        assert found is not None
        assert found.data_range == pytest.approx(expected)
    given = mean_image_ssim(images(x, 1 / 255), data_range=3.0)
    assert given is not None
    assert given.data_range == 3.0


def test_images_of_one_brightness_are_alike() -> None:
    x = np.full((12, 1, 8, 8), 7, np.uint8)
    y = np.zeros(12, np.int64)
    data = from_arrays(x[3:], y[3:], np.arange(9) % 3, server=(x[:3], y[:3]), overlap=True)
    found = mean_image_ssim(data)
    assert found is not None
    np.testing.assert_allclose(found.clients, 1)


def test_more_server_examples_are_more_like_the_clients() -> None:
    few, many = (mean_image_ssim(digits(server=count, seed=1)) for count in (3, 300))
    assert few is not None
    assert many is not None
    assert few.mean < many.mean


def test_there_is_nothing_to_compare_without_images_or_without_a_server() -> None:
    draws = np.random.default_rng(6)
    assert mean_image_ssim(images(draws.normal(size=(30, 5)))) is None
    assert mean_image_ssim(images(draws.normal(size=(30, 8, 8)))) is None  # may be anything
    assert mean_image_ssim(images(draws.integers(0, 9, (30, 2, 8, 8)))) is None
    assert mean_image_ssim(images(draws.integers(0, 9, (30, 1, 8, 3)))) is None
    assert mean_image_ssim(images(draws.integers(0, 9, (30, 1, 8, 8)), server=0)) is None
    with pytest.raises(InputError, match="at least one client"):
        mean_image_ssim(images(draws.integers(0, 9, (30, 1, 8, 8))), np.zeros(0, np.int64))
