"""How alike images are: the structural similarity (SSIM) of the server's mean image and each client's.

Wang, Bovik, Sheikh and Simoncelli, Image quality assessment: from error visibility to structural similarity (2004).
FedSIM (figures 6 and 7) sets the variance of these similarities over clients against accuracy.
"""

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.examples import Array, ClientExamples
from fedtailor.data.label_table import has_images
from fedtailor.errors import require

FloatArray = NDArray[np.float64]

WINDOW, SIGMA, K1, K2 = 11, 1.5, 0.01, 0.03
"""Wang et al.'s window, its standard deviation, and the two constants that keep quotients away from 0 / 0."""
BLOCK_BYTES = 1 << 22


class ImageSimilarity(NamedTuple):
    """SSIM of the server's mean image and each client's: 1 for equal images."""

    clients: FloatArray  # [clients]
    mean: float
    variance: float  # over the clients, as a population
    window: int  # the side of the window that was used
    data_range: float  # the range of brightness that was used, in the model's units


def ssim(
    one: Array,
    other: Array,
    *,
    data_range: float,
    window: int = WINDOW,
    sigma: float = SIGMA,
    k1: float = K1,
    k2: float = K2,
) -> float:
    """The mean SSIM of two images [height, width] or [channels, height, width]; channels count alike.

        SSIM = (2 m_a m_b + C1)(2 s_ab + C2) / ((m_a^2 + m_b^2 + C1)(s_a^2 + s_b^2 + C2)),   C = (K data_range)^2

    at every place where the whole window fits, then the mean over places. Means m, variances s^2 and covariances s_ab
    are weighted by a Gaussian of standard deviation `sigma`, cut to `window` x `window` and normalized to sum 1.
    `data_range` is the difference between the brightest and the darkest that there can be.
    """
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    _validate_ssim_args(a.shape, b.shape, data_range, window, sigma)
    weights = _make_gaussian(window, sigma)
    mean_a, mean_b = _smooth(a, weights), _smooth(b, weights)
    var_a, var_b = _smooth(a * a, weights) - mean_a**2, _smooth(b * b, weights) - mean_b**2
    both = _smooth(a * b, weights) - mean_a * mean_b
    c1, c2 = (k1 * data_range) ** 2, (k2 * data_range) ** 2
    alike = (2 * mean_a * mean_b + c1) * (2 * both + c2)
    return float(np.mean(alike / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))))


def mean_image_ssim(
    dataset: FederatedDataset,
    client_ids: NDArray[np.int64] | None = None,
    *,
    data_range: float | None = None,
) -> ImageSimilarity | None:
    """Compares the mean image of the server with the mean image of each client, or of the clients `who`.

    Mean images are taken over train examples, in the model's units. None where there is nothing to compare: examples
    are no images, or the server has none. Images too small for Wang et al.'s window have the largest odd one that fits.
    Unless it is given, the range of brightness is 1 where the data set scales its whole numbers to 0 .. 1, and
    otherwise what occurs.
    """
    if dataset.server is None or not has_images(dataset):
        return None
    selected = np.arange(dataset.clients.count) if client_ids is None else client_ids
    require(
        len(selected) > 0,
        f"mean_image_ssim: at least one client of '{dataset.name}' is needed, got none.",
    )
    server = _compute_image_stats(dataset.server, 0, dataset.scale)
    clients = [
        _compute_image_stats(dataset.clients, int(client), dataset.scale) for client in selected
    ]
    width = (
        _choose_data_range(dataset.scale, [server, *clients]) if data_range is None else data_range
    )
    window = _choose_window(min(server.mean.shape[-2:]))
    each = np.array(
        [ssim(server.mean, client.mean, data_range=width, window=window) for client in clients]
    )
    return ImageSimilarity(each, float(each.mean()), float(each.var()), window, width)


class _ImageStats(NamedTuple):
    """A holder's images: their mean, and the darkest and brightest that occurs."""

    mean: FloatArray
    low: float
    high: float


def _compute_image_stats(examples: ClientExamples, client: int, scale: float) -> _ImageStats:
    """A holder's train images, read block by block."""
    rows, size = (
        examples.splits["train"].get_rows(client),
        max(1, BLOCK_BYTES // examples.x[:1].nbytes),
    )
    total, low, high = np.zeros(examples.x.shape[1:]), np.inf, -np.inf
    for begin in range(0, len(rows), size):
        images = examples.x[rows[begin : begin + size]]
        total += images.sum(axis=0, dtype=np.float64)
        low, high = min(low, float(images.min())), max(high, float(images.max()))
    return _ImageStats(total * (scale / len(rows)), low * scale, high * scale)


def _choose_data_range(scale: float, stats: list[_ImageStats]) -> float:
    low, high = min(look.low for look in stats), max(look.high for look in stats)
    if scale != 1 and low >= 0 and high <= 1:
        return 1.0
    return high - low or 1.0  # images that are all of one brightness are equal, whatever the range


def _choose_window(side: int) -> int:
    """The largest odd window that fits, at most Wang et al.'s."""
    return min(WINDOW, side - 1 + side % 2)


def _make_gaussian(window: int, sigma: float) -> FloatArray:
    away = np.arange(window) - window // 2
    weights = np.exp(-0.5 * (away / sigma) ** 2)
    return np.asarray(weights / weights.sum())


def _smooth(images: FloatArray, weights: FloatArray) -> FloatArray:
    """The weighted mean in every window that fits; the Gaussian is the product of one along each side."""
    for axis in (-2, -1):
        images = sliding_window_view(images, len(weights), axis=axis) @ weights
    return images


def _validate_ssim_args(
    one: tuple[int, ...], other: tuple[int, ...], data_range: float, window: int, sigma: float
) -> None:
    fits = one == other and len(one) in (2, 3)
    require(
        fits,
        f"ssim: two images of one shape, [height, width] or [channels, height, width], got {one} and {other}.",
    )
    require(window % 2 == 1 and window > 0, f"ssim: window must be odd and positive, got {window}.")
    require(
        window <= min(one[-2:]),
        f"ssim: window must fit into the image of shape {one}, got {window}; choose less.",
    )
    require(sigma > 0, f"ssim: sigma must be positive, got {sigma}.")
    require(data_range > 0, f"ssim: data_range must be positive, got {data_range}.")
