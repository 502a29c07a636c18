"""The report in a real browser: what is drawn, what the controls do, and that nothing is fetched."""

import time
from pathlib import Path

import pytest
from sample_records import comparison, record, regression, unfinished

from browsing import NARROW, SHAPES, WIDE, Browser, as_printed, needs_chromium
from fedtailor.run import report

pytest_plugins = ["browsers"]

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports of several kinds, in files."""
    folder = tmp_path_factory.mktemp("reports")
    methods = comparison({"local": 0.5, "fedavg": 0.6, "fedsim": 0.7})
    records = {
        "comparison": [*methods, *comparison({"<script>fail()</script>&lt;b": 0.55})],
        "one": [record()],
        "running": [unfinished(record(), 4)],
        "not scored": [unfinished(record(), 1)],
        "regression": [regression(made) for made in methods],
        "large": comparison({f"method-{number}": 0.5 + number / 50 for number in range(8)}, clients=300, rounds=60),
    }
    for name, found in records.items():
        report.write(found, folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in records}


CHARTS = ["curves ", "spread local", "spread new", "pairs marks", "pairs gains", "cost mb", "cost steps"]
CHARTS += ["cost seconds", "data "]


@pytest.mark.parametrize(
    ("name", "size", "scheme"),
    [
        ("comparison", WIDE, "light"),
        ("comparison", NARROW, "dark"),
        ("one", NARROW, "light"),
        ("regression", WIDE, "dark"),
    ],
)
def test_every_chart_is_drawn_and_nothing_is_fetched(
    browser: Browser, pages: dict[str, Path], name: str, size: tuple[int, int], scheme: str
) -> None:
    browser.open(pages[name], size, scheme)
    drawn = dict(browser.run(SHAPES))
    assert list(drawn) == CHARTS
    assert all(drawn.values()), drawn
    assert browser.requests() == [pages[name].as_uri()]
    assert browser.run("performance.getEntriesByType('resource').length") == 0
    assert browser.run("document.documentElement.scrollWidth") == size[0]
    assert browser.complaints() == []


@pytest.mark.parametrize(("name", "expected"), [("running", ["curves "]), ("not scored", [])])
def test_a_run_in_progress_shows_its_curve_its_costs_and_its_data(
    browser: Browser, pages: dict[str, Path], name: str, expected: list[str]
) -> None:
    browser.open(pages[name])
    drawn = dict(browser.run(SHAPES))
    assert list(drawn) == [*expected, "cost mb", "cost steps", "cost seconds", "data "]
    assert all(drawn.values()), drawn
    assert "In progress" in browser.run("document.querySelector('.status').textContent")
    assert browser.complaints() == []


def test_every_control_changes_its_charts(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["comparison"])
    browser.run(SHAPES)
    same = browser.run("""(() => {
      const all = kind => [...document.querySelectorAll(`.chart[data-chart="${kind}"]`)];
      const seen = kind => all(kind).map(place => place.innerHTML).join();
      const fields = [...document.querySelectorAll('.controls input:not(:checked)')];
      return fields.map(field => {
        const kind = field.name.split('-')[0], before = seen(kind);
        field.click();
        return seen(kind) === before ? field.name + ' ' + field.value : null;
      }).filter(Boolean);
    })()""")
    assert same == []
    options = "document.querySelector('select[name=pairs-line]').options"
    read = "document.getElementById('pairs-readout').textContent"
    choose = """(number => { const list = document.querySelector('select[name=pairs-line]');
      list.value = String(number); list.dispatchEvent(new Event('change', {bubbles: true})); })"""
    for number in range(browser.run(f"{options}.length")):
        browser.run(f"{choose}({number})")
        assert browser.run(read).startswith(browser.run(f"{options}[{number}].label") + ":")
    assert browser.complaints() == []


def test_a_method_can_be_hidden_in_every_chart(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["comparison"])
    browser.run(SHAPES)
    words = "[...document.querySelectorAll('.chart')].map(place => place.getAttribute('aria-label')).join()"
    assert "local 5" in browser.run(words)
    browser.run("document.querySelector('input[name=line][value=\"0\"]').click()")
    assert "local 5" not in browser.run(words)
    for number in (1, 2, 3):
        browser.run(f"document.querySelector('input[name=line][value=\"{number}\"]').click()")
    assert browser.run("document.querySelector('.chart').textContent") == "Nothing to show for this choice."
    browser.run("document.querySelector('input[name=line][value=\"2\"]').click()")
    assert browser.run("document.querySelector('.chart').getAttribute('aria-label')").count("fedsim") == 1
    assert browser.complaints() == []


def test_the_table_is_sorted_by_keyboard_and_says_so(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["comparison"])
    column = "[...document.querySelectorAll('#figures tbody tr')].map(row => row.cells[{}].dataset.value)"
    state = "[...document.querySelectorAll('#figures [aria-sort]')].map(head => head.getAttribute('aria-sort'))"
    browser.run("document.querySelectorAll('#figures thead button')[2].focus()")
    browser.key("Enter", "\r")
    values = browser.run(column.format(2))
    scores = [float(value) for value in values[:-1]]
    assert scores == sorted(scores, reverse=True)
    assert values[-1] == ""
    assert browser.run(state)[2] == "descending"
    browser.key("Enter", "\r")
    assert browser.run(column.format(2)) == [*values[-2::-1], ""]
    assert browser.run(state)[2] == "ascending"
    browser.run("document.querySelector('#figures thead button').click()")
    assert browser.run(state) == ["ascending", *["none"] * 10]
    names = browser.run(column.format(0))
    assert names[1:] == ["fedavg", "fedavg + fine-tuning", "fedsim", "local"]


def test_the_theme_follows_the_system_until_the_button_is_used(browser: Browser, pages: dict[str, Path]) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    text = "getComputedStyle(document.querySelector('.chart text')).fill"
    browser.open(pages["one"])
    browser.run(SHAPES)
    light = browser.run(paper), browser.run(text)
    browser.look(WIDE, "dark")
    browser.run("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")
    dark = browser.run(paper), browser.run(text)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    browser.run("document.getElementById('theme').click()")
    assert (browser.run(paper), browser.run(text)) == light
    browser.open(pages["one"], scheme="dark")
    assert browser.run(paper) == light[0]
    browser.run("sessionStorage.clear()")


def test_a_command_is_copied(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"])
    browser.run("""window.copied = []; document.addEventListener('copy', () => copied.push(String(getSelection())));
      Object.defineProperty(navigator, 'clipboard', {value: {writeText: async text => {
        if (copied.length) throw new Error('not allowed'); copied.push(text); }}})""")
    click = "document.querySelector('.copy').click(); new Promise(done => setTimeout(done, 50))"
    browser.run(click)
    browser.run(click)
    command = record()["command"]
    assert browser.run("copied") == [command, command]
    assert browser.run("document.querySelector('.copy').textContent") == "Copied"


def test_a_chart_can_be_saved_as_a_picture(browser: Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    browser.open(pages["comparison"])
    browser.run(SHAPES)
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.run("document.querySelector('.save').click()")
    saved = tmp_path / "curves.svg"
    deadline = time.monotonic() + 5
    while not saved.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "fedavg + fine-tuning" in saved.read_text()
    assert browser.complaints() == []


def test_names_that_look_like_html_show_as_they_are(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["comparison"])
    browser.run(SHAPES)
    name = "<script>fail()</script>&lt;b"
    ticks = "[...document.querySelectorAll('.chart[data-chart=cost] .ytick text')].map(tick => tick.textContent)"
    rows = "[...document.querySelectorAll('#figures tbody th span')].map(cell => cell.textContent)"
    assert name in browser.run(ticks)
    assert name in browser.run(rows)
    assert browser.complaints() == []


def test_what_is_printed_is_light_has_every_chart_and_no_controls(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["comparison"], scheme="dark")
    printed = as_printed(browser)
    assert printed["charts"] == len(CHARTS)
    assert printed["wide"] <= 680
    assert printed["ink"] == "rgb(28, 33, 38)"
    browser.call("Emulation.setEmulatedMedia", media="print")
    controls = "[...document.querySelectorAll('.controls, .copy, .save, #theme')]"
    assert browser.run(f"{controls}.every(part => getComputedStyle(part).display === 'none')")
    browser.call("Emulation.setEmulatedMedia", media="")


def test_what_can_be_used_has_a_name(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["comparison"])
    browser.run(SHAPES)
    tree = browser.call("Accessibility.getFullAXTree")["nodes"]
    used = ("button", "radio", "checkbox", "combobox", "image", "region", "table", "columnheader", "rowheader")
    found = [(node["role"]["value"], node.get("name", {}).get("value")) for node in tree if not node["ignored"]]
    parts = [(role, name) for role, name in found if role in used]
    assert {role for role, _ in parts} >= {"button", "radio", "checkbox", "combobox", "image", "columnheader"}
    assert [part for part in parts if not part[1] and part[0] != "table"] == []


def test_colours_have_enough_contrast_in_both_themes(browser: Browser, pages: dict[str, Path]) -> None:
    for scheme in ("light", "dark"):
        browser.open(pages["one"], scheme=scheme)
        names = ["ink", "soft", "accent", "ok", "wait", "stop", *(f"c{number}" for number in range(8))]
        values = {name: browser.run(f"css('--{name}')") for name in ["paper", "raised", *names]}
        for name in names:
            wanted = 3.0 if name.startswith("c") else 4.5
            assert contrast(values[name], values["paper"]) >= wanted, (scheme, name)


def contrast(one: str, other: str) -> float:
    """Of two #rrggbb colours, as WCAG 2 defines it."""
    low, high = sorted(_luminance(colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))


def test_a_large_comparison_is_small_enough(browser: Browser, pages: dict[str, Path]) -> None:
    assert pages["large"].stat().st_size < 8e6
    browser.open(pages["large"])
    assert all(dict(browser.run(SHAPES)).values())
    assert browser.complaints() == []
