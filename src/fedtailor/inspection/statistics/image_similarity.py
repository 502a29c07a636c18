"""Structural similarity (SSIM) of the server's mean image and each client's.

Wang, Bovik, Sheikh and Simoncelli, Image quality assessment: from error visibility to structural
similarity (2004). FedSIM (figures 6 and 7) plots the variance of these similarities over clients
against accuracy.
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

WINDOW = 11
"""Side of Wang et al.'s window, in pixels."""

SIGMA = 1.5
"""Standard deviation of the Gaussian weights in it, in pixels."""

K1 = 0.01
K2 = 0.03
"""Wang et al.'s constants, which keep quotients away from 0 / 0."""

BLOCK_BYTES = 1 << 22
"""Bytes of images that are read at a time."""


class ImageSimilarity(NamedTuple):
    """SSIM of the server's mean image and each client's: 1 for equal images."""

    clients: FloatArray  # [clients]
    mean: float
    variance: float  # over the clients, as a population
    window: int  # side of the window, in pixels
    data_range: float  # range of brightness, in the model's units


def ssim(
    one: Array,
    other: Array,
    *,
    data_range: float,
    window: int = WINDOW,
) -> float:
    """Return the mean SSIM of two images.

        SSIM = (2 m_a m_b + C1)(2 s_ab + C2) / ((m_a^2 + m_b^2 + C1)(s_a^2 + s_b^2 + C2))
        C1 = (K1 data_range)^2,  C2 = (K2 data_range)^2

    at every place where the whole window fits, then the mean over places and channels. Means m,
    variances s^2 and covariances s_ab are weighted by a Gaussian that is cut to the window and
    normalized to sum 1.

    Args:
        one: [height, width] or [channels, height, width].
        other: An image of the same shape.
        data_range: Difference between the largest and the smallest possible brightness.
        window: Side of the window in pixels, an odd number.
    """
    a = np.asarray(one, np.float64)
    b = np.asarray(other, np.float64)
    _validate_ssim_args(a.shape, b.shape, data_range, window)
    weights = _make_gaussian(window)
    mean_a = _smooth(a, weights)
    mean_b = _smooth(b, weights)
    var_a = _smooth(a * a, weights) - mean_a**2
    var_b = _smooth(b * b, weights) - mean_b**2
    covariance = _smooth(a * b, weights) - mean_a * mean_b
    c1 = (K1 * data_range) ** 2
    c2 = (K2 * data_range) ** 2
    numerator = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    denominator = (mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2)
    return float(np.mean(numerator / denominator))


def mean_image_ssim(
    dataset: FederatedDataset,
    client_ids: NDArray[np.int64] | None = None,
    *,
    data_range: float | None = None,
) -> ImageSimilarity | None:
    """Compare the mean image of the server with that of each client.

    Mean images are taken over train examples, in the model's units. If images are too small for
    Wang et al.'s window, it is the largest odd one that fits.

    Args:
        dataset: The clients and the server.
        client_ids: The clients to compare with; None: all.
        data_range: Range of brightness. None: 1 where the data set scales integers to 0 .. 1, and
            otherwise the range of the images.

    Returns:
        The similarities, or None if examples are no images or the server has none.
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
    if data_range is None:
        data_range = _choose_data_range(dataset.scale, [server, *clients])
    window = _choose_window(min(server.mean.shape[-2:]))
    similarities = np.array(
        [ssim(server.mean, client.mean, data_range=data_range, window=window) for client in clients]
    )
    return ImageSimilarity(
        clients=similarities,
        mean=float(similarities.mean()),
        variance=float(similarities.var()),
        window=window,
        data_range=data_range,
    )


class _ImageStats(NamedTuple):
    """The mean of one client's or the server's images, and their least and largest brightness."""

    mean: FloatArray
    low: float
    high: float


def _compute_image_stats(examples: ClientExamples, client: int, scale: float) -> _ImageStats:
    """Read the train images of a client, or of the server as client 0, block by block."""
    rows = examples.splits["train"].get_rows(client)
    block_size = max(1, BLOCK_BYTES // examples.x[:1].nbytes)
    total = np.zeros(examples.x.shape[1:])
    low = np.inf
    high = -np.inf
    for begin in range(0, len(rows), block_size):
        images = examples.x[rows[begin : begin + block_size]]
        total += images.sum(axis=0, dtype=np.float64)
        low = min(low, float(images.min()))
        high = max(high, float(images.max()))
    return _ImageStats(total * (scale / len(rows)), low * scale, high * scale)


def _choose_data_range(scale: float, stats: list[_ImageStats]) -> float:
    low = min(image_stats.low for image_stats in stats)
    high = max(image_stats.high for image_stats in stats)
    if scale != 1 and low >= 0 and high <= 1:
        return 1.0
    if high == low:
        return 1.0  # images that are all of one brightness are equal, whatever the range
    return high - low


def _choose_window(side: int) -> int:
    """Return the side of the largest odd window that fits, at most Wang et al.'s."""
    largest_odd = side - 1 + side % 2
    return min(WINDOW, largest_odd)


def _make_gaussian(window: int) -> FloatArray:
    """Return the weights along one side of the window, [window]."""
    offsets = np.arange(window) - window // 2
    weights = np.exp(-0.5 * (offsets / SIGMA) ** 2)
    return np.asarray(weights / weights.sum())


def _smooth(images: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the weighted mean in every window that fits.

    The two-dimensional Gaussian is the product of one along each side.
    """
    for axis in (-2, -1):
        images = sliding_window_view(images, len(weights), axis=axis) @ weights
    return images


def _validate_ssim_args(
    one_shape: tuple[int, ...],
    other_shape: tuple[int, ...],
    data_range: float,
    window: int,
) -> None:
    require(
        one_shape == other_shape and len(one_shape) in (2, 3),
        "ssim: the arguments must be two images of one shape, [height, width] or "
        f"[channels, height, width], got {one_shape} and {other_shape}.",
    )
    require(window % 2 == 1 and window > 0, f"ssim: window must be odd and positive, got {window}.")
    require(
        window <= min(one_shape[-2:]),
        f"ssim: window must fit into images of shape {one_shape}, got {window}; choose less.",
    )
    require(data_range > 0, f"ssim: data_range must be positive, got {data_range}.")
