"""Damaged copies, against plain loops, exact counts and scipy's filter."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter

from fedtailor.data.examples import Array
from fedtailor.data.server_data import damage as module
from fedtailor.data.server_data.damage import DAMAGES, damage_examples
from fedtailor.errors import InputError

CLASSES = 7


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def toy(
    count: int = 40, channels: int = 1, height: int = 12, width: int = 12, seed: int = 3
) -> tuple[Array, Array]:
    made = draws(seed)
    x = made.integers(0, 256, (count, channels, height, width), np.uint8)
    return x, made.integers(0, CLASSES, count).astype(np.uint8)


def worse(x: Array, name: str, amount: float, seed: int = 0) -> Array:
    return damage_examples(
        x, np.zeros(len(x), int), CLASSES, damage=name, amount=amount, rng=draws(seed)
    )[0]


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damage_is_a_copy_of_the_same_kind_that_the_seed_decides(name: str) -> None:
    x, y = toy(channels=3)
    kept = x.copy(), y.copy()
    once = damage_examples(x, y, CLASSES, damage=name, amount=0.4, rng=draws())
    again = damage_examples(x, y, CLASSES, damage=name, amount=0.4, rng=draws())
    for new, same, old, was in zip(once, again, (x, y), kept, strict=True):
        assert (new.dtype, new.shape) == (old.dtype, old.shape)
        assert not np.shares_memory(new, old)
        np.testing.assert_array_equal(new, same)
        np.testing.assert_array_equal(old, was)
    assert [bool((new == old).all()) for new, old in zip(once, (x, y), strict=True)] == [
        name.endswith("labels"),
        not name.endswith("labels"),
    ]


@pytest.mark.parametrize("name", sorted(set(DAMAGES) - {"blur", "contrast"}))
def test_another_seed_damages_otherwise(name: str) -> None:
    x, y = toy()
    one, other = (
        damage_examples(x, y, CLASSES, damage=name, amount=0.4, rng=draws(seed)) for seed in (0, 1)
    )
    assert any((a != b).any() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", DAMAGES)
def test_nothing_is_lost_at_amount_0_and_nothing_can_be_taken_from_nobody(name: str) -> None:
    x, y = toy()
    for rows in (slice(None), slice(0)):
        new = damage_examples(
            x[rows],
            y[rows],
            CLASSES,
            damage=name,
            amount=0 if rows.stop is None else 0.5,
            rng=draws(),
        )
        np.testing.assert_array_equal(new[0], x[rows])
        np.testing.assert_array_equal(new[1], y[rows])
        assert not np.shares_memory(new[0], x)


def test_noise_has_the_deviation_that_is_asked_for() -> None:
    x = np.full((300, 1, 20, 20), 128, np.uint8)
    noise = worse(x, "noise", 0.1).astype(float) - 128
    assert abs(noise.mean()) < 0.5
    np.testing.assert_allclose(noise.std(), 25.5, rtol=0.02)
    assert len(np.unique(noise[:, 0, 0, 0])) > 50  # no two images have the same noise


def test_noise_stops_at_the_ends_of_the_range() -> None:
    ends = np.repeat(np.array([0, 255], np.uint8), 500).reshape(2, 1, 20, 25)
    noise = worse(ends, "noise", 0.1)
    assert noise[0].max() < 160
    assert noise[1].min() > 95
    np.testing.assert_allclose([(noise[0] == 0).mean(), (noise[1] == 255).mean()], 0.5, atol=0.08)


@settings(max_examples=25, deadline=None)
@given(st.integers(3, 17), st.integers(3, 17), st.floats(0.001, 1), st.integers(0, 99))
def test_blur_is_scipys(height: int, width: int, amount: float, seed: int) -> None:
    x, _ = toy(3, 2, height, width, seed)
    sigma = amount * min(height, width)
    expected = gaussian_filter(x.astype(float), (0, 0, sigma, sigma), mode="nearest", truncate=4)
    assert np.abs(worse(x, "blur", amount) - expected).max() <= 0.5 + 1e-3


@pytest.mark.parametrize("amount", [0.1, 0.25, 1.0])
def test_invert_inverts_so_many_images_and_leaves_the_others(amount: float) -> None:
    x, _ = toy()
    new = worse(x, "invert", amount)
    inverted = (new == 255 - x).all(axis=(1, 2, 3))
    assert inverted.sum() == round(amount * len(x))
    np.testing.assert_array_equal(new[~inverted], x[~inverted])


@pytest.mark.parametrize(
    ("height", "width", "amount"), [(12, 12, 0.25), (10, 20, 0.36), (8, 8, 1.0)]
)
def test_occlude_hides_one_rectangle_of_the_area_under_the_background(
    height: int, width: int, amount: float
) -> None:
    x = np.full((200, 2, height, width), 255, np.uint8)
    x[:, 1] = 40
    x[:, :, ::3, ::2] = 1  # ink, in a sixth of the pixels
    new = worse(x, "occlude", amount)
    tall, wide = round(height * amount**0.5), round(width * amount**0.5)
    corners = set()
    for before, after in zip(x, new, strict=True):
        fits = [
            (top, left)
            for top in range(height - tall + 1)
            for left in range(width - wide + 1)
            if (_hidden(before, top, left, tall, wide) == after).all()
        ]
        assert fits
        corners.add(fits[0])
    assert len(corners) >= min(12, (height - tall + 1) * (width - wide + 1) // 6)


def _hidden(image: Array, top: int, left: int, tall: int, wide: int) -> Array:
    out = image.copy()
    out[0, top : top + tall, left : left + wide] = 255
    out[1, top : top + tall, left : left + wide] = 40
    return out


def test_rotate_turns_so_many_images_by_any_multiple_of_90_degrees() -> None:
    x, _ = toy(200, 3)
    new, turns = worse(x, "rotate", 0.6), Counter[int]()
    for before, after in zip(x, new, strict=True):
        fits = [turn for turn in range(4) if (np.rot90(before, turn, (1, 2)) == after).all()]
        turns[fits[0]] += 1
    assert turns[0] == 80
    assert min(turns[turn] for turn in (1, 2, 3)) > 20


def test_contrast_shrinks_every_image_around_its_own_mean() -> None:
    x, _ = toy(channels=3)
    for image, new in zip(x, worse(x, "contrast", 0.75), strict=True):
        np.testing.assert_allclose(new, image.mean() + 0.25 * (image - image.mean()), atol=0.501)
    assert np.ptp(worse(x, "contrast", 1.0), axis=(1, 2, 3)).max() == 0


def test_images_are_damaged_alike_whether_they_fit_in_a_block_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, _ = toy()
    whole = {name: worse(x, name, 0.3) for name in ("noise", "blur", "invert", "contrast")}
    monkeypatch.setattr(module, "BLOCK_IMAGES", 16)
    for name, expected in whole.items():
        np.testing.assert_array_equal(worse(x, name, 0.3), expected)


@pytest.mark.parametrize("shape", [(700,), (70, 10)])
@pytest.mark.parametrize("amount", [0.1, 0.503, 1.0])
def test_so_many_labels_become_any_of_the_others(shape: tuple[int, ...], amount: float) -> None:
    tokens = np.zeros((shape[0], 5), np.int32)
    y = np.full(shape, 2, np.uint8)
    x, new = damage_examples(tokens, y, CLASSES, damage="wrong-labels", amount=amount, rng=draws())
    np.testing.assert_array_equal(x, tokens)
    counts = np.bincount(new.ravel(), minlength=CLASSES)
    wrong = round(amount * y.size)
    assert counts[2] == y.size - wrong
    others = np.delete(counts, 2)
    assert len(others) == CLASSES - 1
    np.testing.assert_allclose(others, wrong / 6, atol=5 * (wrong / 6) ** 0.5)


def test_shuffled_labels_are_the_same_labels_elsewhere() -> None:
    x, _ = toy(600, height=2, width=2)
    y = np.arange(600)
    new = damage_examples(x, y, 600, damage="shuffled-labels", amount=0.5, rng=draws())[1]
    np.testing.assert_array_equal(np.sort(new), y)
    assert 290 <= (new != y).sum() <= 300  # of those chosen, one on average stays where it is


@pytest.mark.parametrize("amount", [-0.1, 1.01, float("nan"), "much", True])
@pytest.mark.parametrize("name", DAMAGES)
def test_bad_amounts_are_refused(name: str, amount: float) -> None:
    with pytest.raises(
        InputError, match=rf"^{name}: amount must be a number from 0 to 1, got .*\.$"
    ):
        damage_examples(*toy(), CLASSES, damage=name, amount=amount, rng=draws())


def test_what_cannot_be_damaged_is_refused() -> None:
    x, y = toy()
    cases: list[tuple[Array, Array, int, str, str]] = [
        (x, y, CLASSES, "nois", "did you mean noise?"),
        (x, y[:-1], CLASSES, "noise", "equally many"),
        (x[:, 0], y, CLASSES, "blur", r"must be images"),
        (x.astype(float), y, CLASSES, "blur", r"must be images"),
        (x[:, :, 1:], y, CLASSES, "rotate", "as high as they are wide"),
        (x, y, CLASSES - 1, "wrong-labels", "from 0 to 5"),
        (x, y * 0, 1, "wrong-labels", "at least 2"),
        (x, y.astype(float), CLASSES, "shuffled-labels", "whole numbers"),
    ]
    for images, labels, classes, name, sentence in cases:
        with pytest.raises(InputError) as problem:
            damage_examples(images, labels, classes, damage=name, amount=0.5, rng=draws())
        assert sentence in str(problem.value)
