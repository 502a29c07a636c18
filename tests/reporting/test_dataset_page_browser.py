"""The page of a data set in a real browser."""

from pathlib import Path

import numpy as np
import pytest

from browsing import NARROW, SHAPES, WIDE, Browser, as_printed, needs_chromium
from fedtailor import digits, from_arrays, synthetic
from fedtailor.reporting.dataset_page import write_page

pytest_plugins = ["browsers"]

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pictures")
    numbers = from_arrays(np.eye(40), np.linspace(0, 1, 40), np.repeat(np.arange(4), [1, 2, 7, 30]))
    data_sets = {
        "digits": digits(clients=30),
        "synthetic": synthetic(server=0),
        "numbers": numbers,
    }
    paths = {name: folder / f"{name}.html" for name in data_sets}
    for name, path in paths.items():
        write_page(data_sets[name], {}, path)
    return paths


@pytest.mark.parametrize(
    ("name", "size", "scheme"),
    [
        ("digits", WIDE, "light"),
        ("digits", NARROW, "dark"),
        ("synthetic", NARROW, "light"),
        ("numbers", WIDE, "dark"),
    ],
)
def test_every_chart_is_drawn_and_nothing_is_fetched(
    browser: Browser, pages: dict[str, Path], name: str, size: tuple[int, int], scheme: str
) -> None:
    browser.open(pages[name], size, scheme)
    num_shapes = dict(browser.run(SHAPES))
    expected = ["sizes "] if name == "numbers" else ["data ", "sizes ", "mixture "]
    assert list(num_shapes) == expected
    assert all(num_shapes.values()), num_shapes
    assert browser.requests() == [pages[name].as_uri()]
    assert browser.run("document.documentElement.scrollWidth") == size[0]
    assert browser.run("[...document.images].every(image => image.naturalWidth === 8)")
    assert browser.complaints() == []


def test_every_control_changes_its_chart(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["digits"])
    browser.run(SHAPES)
    changes = browser.run("""(() => {
      const read = kind => document.querySelector(`.chart[data-chart="${kind}"]`).innerHTML;
      return [...document.querySelectorAll('.controls input:not(:checked)')].map(field => {
        const kind = field.name.split('-')[0];
        const before = read(kind);
        field.click();
        return [field.name, read(kind) !== before];
      });
    })()""")
    assert changes == [["data-color", True], ["data-order", True], ["sizes-axis", True]]
    sizes = browser.run("document.querySelector('.chart').data[0].y")
    groups = np.split(sizes, [21, 24])
    assert all((np.diff(group) <= 0).all() for group in groups)
    assert browser.complaints() == []


def test_hovering_shows_the_client_and_its_labels(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["digits"])
    browser.run(SHAPES)
    chart = "document.querySelector('.chart')"
    first = browser.run(f"{chart}.data[0].text[0]")
    data = browser.run("report.data")
    client, size = data["ids"][0], data["sizes"][0]
    assert first.startswith(f"{client} (participating), {size} examples<br>label ")
    for label, count in enumerate(data["labels"][0]):
        assert (f"label {label}: {count}" in first) == (count > 0)
    cell = browser.run(f"{chart}.data[1].text[3][5]")
    assert cell.endswith(f"<br>label 3: {data['labels'][5][3]} examples")
    share = browser.run(f"{chart}.data[1].z[3][5]")
    assert share == pytest.approx(data["labels"][5][3] / data["sizes"][5])
    server = browser.run(f"{chart}.data[2].z.map(row => row[0])")
    assert server == pytest.approx([count / data["server"] for count in data["server_labels"]])


def test_what_is_printed_is_light_and_has_every_chart(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["digits"], scheme="dark")
    printed = as_printed(browser)
    assert (printed["charts"], printed["ink"]) == (3, "rgb(28, 33, 38)")
    assert printed["wide"] <= 680


def test_what_can_be_used_has_a_name(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["digits"])
    browser.run(SHAPES)
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    parts = [
        (node["role"]["value"], node.get("name", {}).get("value"))
        for node in nodes
        if not node["ignored"]
    ]
    parts = [(role, name) for role, name in parts if role in ("button", "radio", "image", "img")]
    assert {role for role, _ in parts} >= {"button", "radio", "image"}
    assert [role for role, name in parts if not name] == []
