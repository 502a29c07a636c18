"""A data set in the terminal and as a page, without a browser."""

import base64
import io
import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from rich.cells import cell_len

from fedtailor import FederatedDataset, digits, from_arrays, synthetic
from fedtailor.data.label_table import compute_label_table, has_images, sort_by_main_label
from fedtailor.reporting.dataset_page import (
    describe_figures,
    draw_labels,
    list_notes,
    make_summary,
    render_dataset_page,
)
from fedtailor.reporting.dataset_page.images import encode_png
from fedtailor.reporting.dataset_page.numbers import (
    compute_even_edges,
    compute_log_edges,
    has_wide_range,
)
from report_pages import payload_of

MARGIN = 7
"""Columns before the marks of a picture with short labels."""


def make_tokens() -> FederatedDataset:
    x = np.arange(40).reshape(20, 2)
    owners = np.repeat(np.arange(5), 4)
    return from_arrays(x, x, owners, classes=50, tokens=True, server=2, name="words")


def draw_lines(data: FederatedDataset, width: int, **options: Any) -> list[str]:
    return [line.plain for line in draw_labels(compute_label_table(data), width, **options)]


def split_marks(row: str, group_sizes: list[int], client_width: int) -> list[str]:
    """Return the mark of each client in a row, without the gaps between groups."""
    marks = []
    start = MARGIN
    for size in group_sizes:
        for index in range(size):
            marks.append(row.ljust(200)[start + client_width * index])
        start += client_width * size + 2
    return marks


def compute_level(share: float) -> int:
    """Return the number of the mark of a share, by the bounds in the legend: 1/16, 1/4, 9/16."""
    if share == 0:
        return 0
    return 1 + sum(share > bound + 1e-12 for bound in (1 / 16, 1 / 4, 9 / 16))


@pytest.mark.parametrize(
    ("width", "client_width", "marks"), [(80, 1, " ░▒▓█"), (120, 2, " ░▒▓█"), (80, 1, " .:*#")]
)
def test_every_mark_is_the_share_of_a_label(width: int, client_width: int, marks: str) -> None:
    data = digits(clients=50)
    lines = draw_lines(data, width, is_ascii="#" in marks)
    table = compute_label_table(data)
    assert table.counts is not None
    assert table.server is not None
    levels_by_label = [
        [marks.index(mark) for mark in split_marks(row, [35, 5, 10, 1], client_width)]
        for row in lines[1:11]
    ]
    client_shares = table.counts / table.counts.sum(axis=1, keepdims=True)
    shares = np.vstack([client_shares, table.server / table.server.sum()])
    expected = np.array([[compute_level(share) for share in row] for row in shares])
    order = [*sort_by_main_label(table), -1]
    assert np.array_equal(np.array(levels_by_label).T, expected[order])
    names = [row[:5].strip() for row in lines[:12]]
    assert names == ["label", *map(str, range(10)), "size"]
    validation = "validation" if client_width == 2 else "valid"
    assert lines[0].split() == ["label", "participating", validation, "unseen", "server"]


@settings(deadline=None, max_examples=40)
@given(st.integers(30, 150), st.integers(1, 60), st.booleans(), st.sampled_from([1, 7, 40]))
def test_no_line_of_the_picture_is_too_wide(
    width: int, max_clients: int, is_ascii: bool, num_clients: int
) -> None:
    data = synthetic(clients=num_clients, most=60)
    lines = draw_lines(data, width, is_ascii=is_ascii, max_clients=max_clients)
    picture = lines[: lines.index("")]
    assert max(map(cell_len, picture)) <= width
    assert not is_ascii or "".join(lines).isascii()
    if max_clients < num_clients:
        sentence = next(line for line in lines if "clients are drawn" in line)
        num_drawn, _, total = sentence.split()[:3]
        assert int(num_drawn) <= max_clients
        assert int(total) == num_clients


def test_every_group_is_drawn_where_few_clients_have_room() -> None:
    data = synthetic(clients=100, most=60, unseen_clients=0.02, validation_clients=0.02)
    lines = draw_lines(data, 60)
    assert lines[0].split() == ["label", "participating", "v", "u", "server"]
    sentence = "41 of 100 clients are drawn, evenly spaced in order of group and main label."
    assert lines[-1] == sentence


def test_of_very_many_labels_the_most_frequent_are_drawn() -> None:
    y = np.concatenate([np.arange(300), np.repeat(np.arange(100, 164), 5)])
    data = from_arrays(np.arange(len(y))[:, None], y, np.arange(len(y)) % 5)
    lines = draw_lines(data, 80)
    assert [int(row[:5]) for row in lines[1:65]] == list(range(100, 164))
    assert lines[-1] == "The 64 most frequent of 300 labels are drawn."


@pytest.mark.parametrize("sizes", [[3, 4, 5, 5, 5, 12], [1, 2, 3, 900], [7], list(range(1, 200))])
def test_without_labels_sizes_are_drawn(sizes: list[int]) -> None:
    owners = np.repeat(np.arange(len(sizes)), sizes)
    lines = draw_lines(from_arrays(owners[:, None], owners / 2, owners), 70, is_ascii=True)
    assert lines[0].split() == ["examples", "clients"]
    counts: dict[tuple[int, int], int] = {}
    for line in lines[1:]:
        numbers = [int(number.replace(",", "")) for number in re.findall(r"[\d,]+", line)]
        low, high, count = numbers[0], numbers[-2], numbers[-1]
        counts[low, high] = count
        assert len(line) <= 70
        assert ("#" in line) == (count > 0)
    for (low, high), count in counts.items():
        assert count == sum(low <= size <= high for size in sizes)
    assert sum(counts.values()) == len(sizes)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=50), st.integers(2, 40))
def test_bars_hold_every_size_once(sizes: list[int], max_bars: int) -> None:
    array = np.array(sizes)
    for compute_edges in (compute_even_edges, compute_log_edges):
        edges = compute_edges(array, max_bars)
        assert len(edges) <= max_bars + 2
        assert edges == sorted(set(edges))
        assert sum(np.histogram(array, edges)[0]) == len(sizes)
        assert all(edge % 1 == 0.5 for edge in edges)
    assert has_wide_range(array) == (max(sizes) >= 10 * min(sizes))


def test_sentences_have_the_figures() -> None:
    data = digits(clients=20)
    table = compute_label_table(data)
    assert make_summary(data, table) == (
        "1,707 examples of 20 clients (14 participating, 2 validation and 4 unseen); 10 classes; "
        "90 examples held by the server."
    )
    figures = dict(describe_figures(table))
    assert figures["labels of a client"] == "2.0 of 10, mean"
    assert figures["a client's differ"].startswith("by 0.80 from all clients' together")


def test_notes_tell_which_clients_are_counted_and_why_labels_are_missing() -> None:
    data = digits(clients=20)
    assert list_notes(data, compute_label_table(data, max_clients=5)) == [
        "1,797 rows read: 1,707 used by clients, 90 held by the server, 0 left out.",
        "Labels are of 5 of the 20 clients, evenly spaced; sizes are of all.",
    ]
    table = compute_label_table(make_tokens())
    assert list_notes(make_tokens(), table)[1:] == [table.reason]
    assert len(describe_figures(table)) == 1


class Reader(HTMLParser):
    """Elements and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] not in ("script", "style"):
            self.texts.append(data)


def test_the_page_fetches_nothing() -> None:
    reader = Reader(render_dataset_page(digits(clients=20), {"clients": 20}))
    sources = [
        value
        for _, attributes in reader.elements
        for name, value in attributes.items()
        if name in ("src", "href")
    ]
    assert sources
    assert all(source and source.startswith(("data:", "#")) for source in sources)
    policies = [
        attributes["content"]
        for tag, attributes in reader.elements
        if tag == "meta" and "http-equiv" in attributes
    ]
    assert len(policies) == 1
    assert str(policies[0]).startswith("default-src 'none'; script-src 'sha256-")
    assert "digits: clients=20" in reader.texts


def test_the_page_has_the_numbers_of_the_table() -> None:
    data = digits(clients=50)
    table = compute_label_table(data)
    payload = payload_of(render_dataset_page(data, {}))
    assert table.counts is not None
    assert table.server is not None
    names = [str(name) for name in table.client_names]
    counts_by_name = dict(zip(names, table.counts.tolist(), strict=True))
    clients = payload["data"]
    assert dict(zip(clients["ids"], clients["labels"], strict=True)) == counts_by_name
    assert clients["sizes"] == [sum(row) for row in clients["labels"]]
    assert clients["server_labels"] == table.server.tolist()
    assert sum(payload["sizes"]["linear"]["clients"]) == 50
    assert sum(payload["sizes"]["log"]["clients"]) == 50
    shares = [
        np.mean([row[label] / sum(row) for row in counts_by_name.values()]) for label in range(10)
    ]
    assert payload["mixture"]["clients"] == pytest.approx(shares, rel=1e-4)
    assert sum(payload["mixture"]["server"]) == pytest.approx(1, rel=1e-4)


def test_names_and_options_that_look_like_html_stay_text() -> None:
    hostile = "</script><script>alert(1)</script>\"'<b>"
    images = np.arange(6 * 36, dtype=np.uint8).reshape(6, 1, 6, 6)
    attacked = from_arrays(images, [0, 1] * 3, [hostile] * 3 + ["b"] * 3, name=hostile)
    plain = from_arrays(images, [0, 1] * 3, ["a"] * 3 + ["b"] * 3)
    page = render_dataset_page(attacked, {"partition": hostile})
    reader = Reader(page)
    plain_reader = Reader(render_dataset_page(plain, {}))
    assert [tag for tag, _ in reader.elements] == [tag for tag, _ in plain_reader.elements]
    assert f"{hostile}: partition={hostile}" in reader.texts
    assert hostile in payload_of(page)["data"]["ids"]


def decode_image(source: str) -> Any:
    content = base64.b64decode(source.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(content)))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_holds_its_pixels(channels: int) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (5, 7, channels), np.uint8)
    assert np.array_equal(decode_image(encode_png(pixels)).reshape(5, 7, channels), pixels)


def test_images_are_those_of_the_clients_and_the_server() -> None:
    data = digits(clients=20)
    client_names = data.client_names.tolist()
    images = [
        (str(attributes["src"]), str(attributes["alt"]))
        for tag, attributes in Reader(render_dataset_page(data, {})).elements
        if tag == "img"
    ]
    num_images = Counter(alt.rpartition(" ")[2] for _, alt in images)
    clients = [client_names.index(name) for name in num_images if name != "server"]
    groups = compute_label_table(data).groups[clients]
    assert [*groups[:4], *groups[-1:]] == ["participating"] * 4 + ["unseen"]
    assert len(num_images) == 7
    assert num_images["server"] == max(num_images.values()) == 12
    for source, alt in images:
        label, name = re.findall(r"label (\d+) of (?:client )?(\S+)", alt)[0]
        examples = data.server if name == "server" else data.clients
        client_id = 0 if name == "server" else client_names.index(name)
        assert examples is not None
        rows = examples.splits["train"].get_rows(client_id)
        rows = rows[examples.y[rows] == int(label)]
        candidates = np.rint(examples.x[rows][:, 0] * (255 / 16))
        image = decode_image(source)
        assert any(np.array_equal(image, candidate) for candidate in candidates), alt


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 8, 8), True),
        ((3, 8, 8), True),
        ((2, 8, 8), False),
        ((8, 8), True),
        ((64,), False),
        ((3, 3), False),
    ],
)
def test_images_are_told_by_their_shape(shape: tuple[int, ...], expected: bool) -> None:
    x = np.zeros((4, *shape), np.uint8)
    assert has_images(from_arrays(x, [0, 1, 0, 1], [0, 0, 1, 1])) == expected


def test_real_numbers_and_tokens_without_channels_are_no_images() -> None:
    assert not has_images(from_arrays(np.zeros((4, 8, 8)), [0, 1, 0, 1], [0, 0, 1, 1]))
    assert not has_images(make_tokens())


@pytest.mark.parametrize(
    "data", [make_tokens(), from_arrays(np.eye(8), np.linspace(0, 1, 8), np.repeat([0, 1], 4))]
)
def test_a_page_without_labels_has_sizes_alone(data: FederatedDataset) -> None:
    page = render_dataset_page(data, {})
    assert re.findall(r'<div class="chart".*? data-chart="(\w+)"', page) == ["sizes"]
    assert compute_label_table(data).reason in page
    assert "<img" not in page
