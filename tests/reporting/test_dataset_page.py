"""A data set in the terminal and as a page, without a browser."""

import base64
import io
import json
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


def tokens() -> FederatedDataset:
    x = np.arange(40).reshape(20, 2)
    return from_arrays(
        x, x, np.repeat(np.arange(5), 4), classes=50, tokens=True, server=2, name="words"
    )


def lines(data: FederatedDataset, width: int, **how: Any) -> list[str]:
    return [line.plain for line in draw_labels(compute_label_table(data), width, **how)]


def cells(row: str, groups: list[int], wide: int = 1) -> list[list[str]]:
    """The marks of each group in a row, after seven columns of margin."""
    found, at = [], 7
    for size in groups:
        found.append([row.ljust(200)[at + wide * place] for place in range(size)])
        at += wide * size + 2
    return found


def level(share: float) -> int:
    """The bounds as the legend says them: 1/16, 1/4, 9/16."""
    return 0 if share == 0 else 1 + sum(share > bound + 1e-12 for bound in (1 / 16, 1 / 4, 9 / 16))


@pytest.mark.parametrize(
    ("width", "wide", "marks"), [(80, 1, " ░▒▓█"), (120, 2, " ░▒▓█"), (80, 1, " .:*#")]
)
def test_every_mark_is_the_share_of_a_label(width: int, wide: int, marks: str) -> None:
    data = digits(clients=50)
    shown = lines(data, width, is_ascii="#" in marks)
    table = compute_label_table(data)
    assert table.counts is not None
    assert table.server is not None
    seen = np.array(
        [
            [marks.index(mark) for group in cells(row, [35, 5, 10, 1], wide) for mark in group]
            for row in shown[1:11]
        ]
    )
    shares = np.vstack(
        [
            (table.counts / table.counts.sum(axis=1, keepdims=True)),
            table.server / table.server.sum(),
        ]
    )
    expected = np.array([[level(share) for share in row] for row in shares])
    assert np.array_equal(seen.T, expected[[*sort_by_main_label(table), -1]])
    assert [row[:5].strip() for row in shown[:12]] == ["label", *map(str, range(10)), "size"]
    assert shown[0].split() == [
        "label",
        "participating",
        "valid" if wide == 1 else "validation",
        "unseen",
        "server",
    ]


@settings(deadline=None, max_examples=40)
@given(st.integers(30, 150), st.integers(1, 60), st.booleans(), st.sampled_from([1, 7, 40]))
def test_no_line_is_wider_than_asked_for(width: int, limit: int, plain: bool, clients: int) -> None:
    data = synthetic(clients=clients, most=60)
    shown = lines(data, width, is_ascii=plain, max_clients=limit)
    body = shown[: shown.index("")]
    assert max(map(cell_len, body)) <= width
    assert not plain or "".join(shown).isascii()
    said_so = [line for line in shown if line.startswith("Drawn are")]
    if limit < clients:
        assert int(said_so[0].split()[2]) <= limit
        assert f"of {clients} clients" in said_so[0]


def test_every_group_is_drawn_where_few_have_room() -> None:
    shown = lines(synthetic(clients=100, most=60, unseen_clients=0.02, validation_clients=0.02), 60)
    groups = re.findall(r"\S+", shown[0])
    assert groups == ["label", "participating", "v", "u", "server"]
    assert (
        shown[-1] == "Drawn are 41 of 100 clients, evenly spaced in order of group and main label."
    )


def test_of_very_many_labels_the_commonest_are_drawn() -> None:
    y = np.concatenate([np.arange(300), np.repeat(np.arange(100, 164), 5)])
    data = from_arrays(np.arange(len(y))[:, None], y, np.arange(len(y)) % 5)
    shown = lines(data, 80)
    assert [int(row[:5]) for row in shown[1:65]] == list(range(100, 164))
    assert shown[-1] == "Drawn are the 64 commonest of 300 labels."


@pytest.mark.parametrize("sizes", [[3, 4, 5, 5, 5, 12], [1, 2, 3, 900], [7], list(range(1, 200))])
def test_without_labels_sizes_are_drawn(sizes: list[int]) -> None:
    whose = np.repeat(np.arange(len(sizes)), sizes)
    data = from_arrays(whose[:, None], whose / 2, whose)
    shown = lines(data, 70, is_ascii=True)
    assert shown[0].split() == ["examples", "clients"]
    found: dict[tuple[int, int], int] = {}
    for row in shown[1:]:
        numbers = [int(number.replace(",", "")) for number in re.findall(r"[\d,]+", row)]
        found[numbers[0], numbers[-2]] = numbers[-1]
        assert len(row) <= 70
        assert ("#" in row) == (numbers[-1] > 0)
    assert found == {(low, high): sum(low <= size <= high for size in sizes) for low, high in found}
    assert sum(found.values()) == len(sizes)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=50), st.integers(2, 40))
def test_bars_hold_every_size_once(sizes: list[int], bars: int) -> None:
    array = np.array(sizes)
    for make in (compute_even_edges, compute_log_edges):
        edges = make(array, bars)
        assert len(edges) <= bars + 2
        assert edges == sorted(set(edges))
        assert sum(np.histogram(array, edges)[0]) == len(sizes)
        assert all(edge % 1 == 0.5 for edge in edges)
    assert has_wide_range(array) == (max(sizes) >= 10 * min(sizes))


def test_sentences_have_the_figures() -> None:
    data = digits(clients=20)
    table = compute_label_table(data)
    assert make_summary(data, table) == (
        "1,707 examples of 20 clients (14 participating, 2 validation and 4 unseen); 10 classes; 90 examples held by the server."
    )
    told = dict(describe_figures(table))
    assert told["labels of a client"] == "2.0 of 10, mean"
    assert told["a client's differ"].startswith("by 0.80 from all clients' together")
    assert list_notes(data, compute_label_table(data, max_clients=5)) == [
        "Labels are of 5 of the 20 clients, evenly spaced; sizes are of all."
    ]
    assert list_notes(tokens(), compute_label_table(tokens())) == [
        compute_label_table(tokens()).reason
    ]
    assert len(describe_figures(compute_label_table(tokens()))) == 1


class Reader(HTMLParser):
    """Elements and texts of a page."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] not in ("script", "style"):
            self.texts.append(data)


def test_everything_is_in_the_page() -> None:
    read = Reader(render_dataset_page(digits(clients=20), {"clients": 20}))
    sources = [
        value
        for _, found in read.elements
        for key, value in found.items()
        if key in ("src", "href")
    ]
    assert sources
    assert all(source and source.startswith(("data:", "#")) for source in sources)
    policy = next(
        found["content"] for tag, found in read.elements if tag == "meta" and "http-equiv" in found
    )
    assert policy
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "digits: clients=20" in read.texts


def numbers_in(content: str) -> Any:
    found = re.search(
        r'<script type="application/json" id="report">(.*?)</script>', content, re.DOTALL
    )
    assert found
    return json.loads(found[1])


def test_the_page_has_the_numbers_of_the_table() -> None:
    data = digits(clients=50)
    table, numbers = compute_label_table(data), numbers_in(render_dataset_page(data, {}))
    assert table.counts is not None
    assert table.server is not None
    known = {
        str(name): row for name, row in zip(table.client_names, table.counts.tolist(), strict=True)
    }
    assert dict(zip(numbers["data"]["ids"], numbers["data"]["labels"], strict=True)) == known
    assert numbers["data"]["sizes"] == [sum(row) for row in numbers["data"]["labels"]]
    assert numbers["data"]["server_labels"] == table.server.tolist()
    assert (
        sum(numbers["sizes"]["linear"]["clients"]) == sum(numbers["sizes"]["log"]["clients"]) == 50
    )
    shares = [np.mean([row[kind] / sum(row) for row in known.values()]) for kind in range(10)]
    assert numbers["mixture"]["clients"] == pytest.approx(shares, rel=1e-4)
    assert sum(numbers["mixture"]["server"]) == pytest.approx(1, rel=1e-4)


def test_names_and_options_that_look_like_html_stay_text() -> None:
    hostile = "</script><script>alert(1)</script>\"'<b>"
    images = np.arange(6 * 36, dtype=np.uint8).reshape(6, 1, 6, 6)
    data = from_arrays(images, [0, 1] * 3, [hostile] * 3 + ["b"] * 3, name=hostile)
    content = render_dataset_page(data, {"partition": hostile})
    read, plain = (
        Reader(content),
        Reader(render_dataset_page(from_arrays(images, [0, 1] * 3, ["a"] * 3 + ["b"] * 3), {})),
    )
    assert [tag for tag, _ in read.elements] == [tag for tag, _ in plain.elements]
    assert f"{hostile}: partition={hostile}" in read.texts
    assert hostile in numbers_in(content)["data"]["ids"]


def image_in(source: str) -> Any:
    return np.asarray(
        Image.open(io.BytesIO(base64.b64decode(source.removeprefix("data:image/png;base64,"))))
    )


def test_a_png_holds_its_pixels() -> None:
    draws = np.random.default_rng(0)
    for channels in (1, 3):
        pixels = draws.integers(0, 256, (5, 7, channels), np.uint8)
        assert np.array_equal(image_in(encode_png(pixels)).reshape(5, 7, channels), pixels)


def test_images_shown_are_those_of_the_clients_and_the_server() -> None:
    data = digits(clients=20)
    shown = [
        (found["src"], found["alt"])
        for tag, found in Reader(render_dataset_page(data, {})).elements
        if tag == "img"
    ]
    whose = Counter(str(about).rpartition(" ")[2] for _, about in shown)
    groups = compute_label_table(data).groups[
        [data.client_names.tolist().index(client) for client in whose if client != "server"]
    ]
    assert [*groups[:4], *groups[-1:]] == ["participating"] * 4 + ["unseen"]
    assert len(whose) == 7
    assert whose["server"] == max(whose.values()) == 12
    for source, about in shown:
        assert source
        assert about
        label, client = re.findall(r"label (\d+) of (?:client )?(\S+)", about)[0]
        holders, who = (
            (data.server, 0)
            if client == "server"
            else (data.clients, data.client_names.tolist().index(client))
        )
        assert holders
        own = holders.splits["train"].get_rows(who)
        candidates = np.rint(holders.x[own[holders.y[own] == int(label)]][:, 0] * (255 / 16))
        assert any(np.array_equal(image_in(source), one) for one in candidates), about


def test_what_is_an_image() -> None:
    shapes = {
        (1, 8, 8): True,
        (3, 8, 8): True,
        (2, 8, 8): False,
        (8, 8): True,
        (64,): False,
        (3, 3): False,
    }
    for shape, expected in shapes.items():
        x = np.zeros((4, *shape), np.uint8)
        assert has_images(from_arrays(x, [0, 1, 0, 1], [0, 0, 1, 1])) == expected, shape
    assert not has_images(from_arrays(np.zeros((4, 8, 8)), [0, 1, 0, 1], [0, 0, 1, 1]))
    assert not has_images(tokens())


@pytest.mark.parametrize(
    "data", [tokens(), from_arrays(np.eye(8), np.linspace(0, 1, 8), np.repeat([0, 1], 4))]
)
def test_a_page_without_labels_has_sizes_alone(data: FederatedDataset) -> None:
    content = render_dataset_page(data, {})
    assert re.findall(r'<div class="chart".*? data-chart="(\w+)"', content) == ["sizes"]
    assert compute_label_table(data).reason in content
    assert "<img" not in content
