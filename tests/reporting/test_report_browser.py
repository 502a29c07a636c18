"""The report in a real browser: what is drawn, what the controls do, and that nothing is fetched."""

import itertools
import time
from pathlib import Path

import pytest

from browsing import NARROW, SHAPES, WIDE, Browser, as_printed, needs_chromium
from fedtailor.reporting import html
from sample_records import (
    Record,
    comparison,
    counted,
    diverged,
    record,
    regression,
    unfinished,
    with_scores,
)

pytest_plugins = ["browsers"]

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports of several kinds, in files."""
    folder = tmp_path_factory.mktemp("reports")
    methods = comparison({"local": 0.5, "fedavg": 0.6, "fedsim": 0.7})
    records = {
        "comparison": [*methods, *comparison({"<b>fail()</b>&lt;": 0.55})],
        "one": [record()],
        "running": [unfinished(record(), 4)],
        "not scored": [unfinished(record(), 1)],
        "regression": [regression(made) for made in methods],
        "large": eight(),
        "counted": [counted(made, 1e9 * place) for place, made in enumerate(methods, 1)],
        "one group": [one_group(made) for made in methods],
        "diverged": [
            diverged(lost(made)) if made["name"] == "fedsim" else made for made in methods
        ],
    }
    for name, found in records.items():
        html.write_report(found, folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in records}


def eight() -> list[Record]:
    """Eight methods with three seeds and everything that is counted, one of them with a very long name."""
    names = [
        "local",
        "fedavg",
        "fedprox",
        "fedsim@tuned",
        "fsl+per+fedmeta@with-a-very-long-label-of-its-own",
    ]
    skills = {
        name: 0.5 + place / 50
        for place, name in enumerate([*names, "pfedme", "lg-fedavg", "per-fedavg"])
    }
    return [counted(made) for made in comparison(skills, clients=300, rounds=100)]


def one_group(made: Record) -> Record:
    """The same run without new clients."""
    scores = {"participating": made["scores"]["participating"]}
    return made | {
        "scores": scores,
        "data": made["data"] | {"groups": made["data"]["groups"] | {"unseen": []}},
    }


def lost(made: Record) -> Record:
    """The same run in which nobody's loss is finite."""
    scores = made["scores"]["participating"]
    nothing: list[float | None] = [None] * len(scores["ids"])
    for stage in ("before", "after"):
        scores[stage]["loss"] = nothing
    return made


PAIRS = ["pairs marks", "pairs gains"]
COSTS = ["cost mb", "cost steps", "cost seconds"]
ALONE = ["alone shares local", "alone shares new", "alone marks local", "alone marks new"]
SCORES = ["glance local", "glance new", "curves ", "spread local", "spread new"]
CHARTS = [*SCORES, *ALONE, *PAIRS, *COSTS, "data "]
COUNTED = [*SCORES, *ALONE, *PAIRS, "cost mb", "cost flops", "cost steps", "cost seconds", "data "]
ONE = [*SCORES, *PAIRS, *COSTS, "data "]
ONE_GROUP = [name for name in CHARTS if not name.endswith(" new")]


@pytest.mark.parametrize(
    ("name", "size", "scheme", "expected"),
    [
        ("comparison", WIDE, "light", CHARTS),
        ("one", NARROW, "light", ONE),
        ("regression", WIDE, "dark", CHARTS),
        ("one group", WIDE, "dark", ONE_GROUP),
        ("diverged", NARROW, "light", CHARTS),
        ("large", NARROW, "dark", COUNTED),
    ],
)
def test_every_chart_is_drawn_and_nothing_is_fetched(
    browser: Browser,
    pages: dict[str, Path],
    name: str,
    size: tuple[int, int],
    scheme: str,
    expected: list[str],
) -> None:
    browser.open(pages[name], size, scheme)
    drawn = dict(browser.run(SHAPES))
    assert list(drawn) == expected
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


@pytest.mark.parametrize("name", ["large", "regression"])
def test_every_control_changes_its_charts(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    browser.open(pages[name])
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
    assert browser.complaints() == []


CHOOSE = """((name, number) => { const list = document.querySelector(`select[name=${name}]`);
  list.value = String(number); list.dispatchEvent(new Event('change', {bubbles: true})); })"""


def test_a_method_can_be_chosen_to_see_its_clients(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["comparison"])
    browser.run(SHAPES)
    read = "document.getElementById('pairs-readout').textContent"
    words = "document.querySelector('.chart[data-group=\"marks new\"]').getAttribute('aria-label')"
    options = "[...document.querySelector('select[name={}]').options].map(option => [option.value, option.label])"
    for value, label in browser.run(options.format("pairs-line")):
        browser.run(f"{CHOOSE}('pairs-line', {value})")
        assert browser.run(read).startswith(f"{label}:")
    others = browser.run(options.format("alone-line"))
    assert [label for _, label in others] == ["fedavg + fine-tuning", "fedsim", "<b>fail()</b>&lt;"]
    for value, label in others:
        browser.run(f"{CHOOSE}('alone-line', {value})")
        assert browser.run(words).startswith(f"{label}, accuracy of new clients: ")
    assert browser.complaints() == []


def test_a_mark_is_a_client_against_itself_alone(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    alone = with_scores(record("local"), "participating", [0.1] * 3, [0.5, 0.5, 0.25])
    other = with_scores(record("fedsim"), "participating", [0.1] * 3, [0.75, 0.75, 0.125])
    html.write_report([alone, other], tmp_path / "pair.html")
    browser.open(tmp_path / "pair.html")
    browser.run(SHAPES)
    marks = browser.run(
        "(({x, y, text}) => [x, y, text])(document.querySelector('[data-group=\"marks local\"]').data[1])"
    )
    assert marks[:2] == [[50, 25], [75, 12.5]]
    assert marks[2][0].startswith("local-0, seed 1<br>local-1, seed 1<br>alone 50")
    shares = browser.run(
        "document.querySelector('[data-group=\"shares local\"]').data.map(bar => bar.x[0])"
    )
    assert shares == pytest.approx([200 / 3, 0, 100 / 3])


def test_curves_can_be_seen_against_rounds_bytes_and_work(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["counted"])
    browser.run(SHAPES)
    titles, ends = [], []
    for x in ("round", "mb", "flops"):
        browser.run(f"document.querySelector('input[name=curves-x][value={x}]').click()")
        chart = "document.querySelector('.chart[data-chart=curves]')"
        titles.append(browser.run(f"{chart}.layout.xaxis.title.text"))
        ends.append(
            browser.run(f"{chart}.data.filter(trace => trace.name).map(trace => trace.x.at(-1))")
        )
    assert titles == ["round", "MB sent, down and up together", "GFLOP of clients"]
    assert ends[0] == [10, 10, 10]
    assert ends[1] == pytest.approx([3.7] * 3)
    assert ends[2] == pytest.approx(
        [20, 50, 80]
    )  # the mean of seeds that cost 1, 2 and 3, 4, 5 and 6, ... GFLOP a round


def test_names_at_the_ends_of_curves_do_not_touch(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["large"])
    browser.run(SHAPES)
    boxes = browser.run("""[...document.querySelectorAll('.chart[data-chart=curves] .annotation-text')].map(text => {
      const {top, bottom, right} = text.getBoundingClientRect(); return [top, bottom, right]; })""")
    assert len(boxes) == 8
    boxes.sort()
    assert all(below[0] >= above[1] - 2 for above, below in itertools.pairwise(boxes))
    edge = browser.run(
        "document.querySelector('.chart[data-chart=curves]').getBoundingClientRect().right"
    )
    assert max(right for _, _, right in boxes) <= edge
    names = browser.run(
        "[...document.querySelectorAll('.annotation-text')].map(text => text.textContent).join()"
    )
    assert "fsl+per+fedmeta@with-a-v\u2026" in names or "fsl+per+fedmeta@with-a-\u2026" in names


def test_who_does_not_train_in_rounds_is_a_level_line(browser: Browser, tmp_path: Path) -> None:
    still = record("local")
    still["cost"] |= {"bytes_down": 0, "bytes_up": 0, "steps": 0}
    for entry in still["rounds"]:
        entry |= {"bytes_down": 0, "bytes_up": 0, "steps": 0, "scores": None}
    html.write_report([still, record()], tmp_path / "still.html")
    browser.open(tmp_path / "still.html")
    browser.run(SHAPES)
    for x, end in (("round", 10), ("mb", 3.7)):
        browser.run(f"document.querySelector('input[name=curves-x][value={x}]').click()")
        line = browser.run(
            "(({x, y}) => [x, y])(document.querySelector('.chart[data-chart=curves]').data[0])"
        )
        assert line[0] == pytest.approx([0, end])
        assert line[1][0] == line[1][1]


def test_a_method_can_be_hidden_in_every_chart(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["comparison"])
    browser.run(SHAPES)
    words = "[...document.querySelectorAll('.chart')].map(place => place.getAttribute('aria-label')).join()"
    assert "local 5" in browser.run(words)
    browser.run("document.querySelector('input[name=line][value=\"0\"]').click()")
    assert "local 5" not in browser.run(words)
    for number in (1, 2, 3):
        browser.run(f"document.querySelector('input[name=line][value=\"{number}\"]').click()")
    empty = "[...document.querySelectorAll('.chart:not([data-chart=data], [data-chart=pairs], [data-group^=marks])')]"
    assert set(browser.run(f"{empty}.map(place => place.textContent)")) == {
        "Nothing to show for this choice."
    }
    browser.run("document.querySelector('input[name=line][value=\"2\"]').click()")
    assert (
        browser.run("document.querySelector('.chart').getAttribute('aria-label')").count("fedsim")
        == 1
    )
    assert browser.complaints() == []


def test_the_table_is_sorted_by_keyboard_and_says_so(
    browser: Browser, pages: dict[str, Path]
) -> None:
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


def test_the_theme_follows_the_system_until_the_button_is_used(
    browser: Browser, pages: dict[str, Path]
) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    text = "getComputedStyle(document.querySelector('.chart text')).fill"
    browser.open(pages["one"])
    browser.run("sessionStorage.clear()")  # where a test before may have left a choice
    browser.open(pages["one"])
    browser.run(SHAPES)
    light = browser.run(paper), browser.run(text)
    browser.look(WIDE, "dark")
    browser.run(f"""new Promise(done => {{
      const look = left => {paper} !== {light[0]!r} || !left ? setTimeout(done, 50) : setTimeout(look, 50, left - 1);
      look(100); }})""")
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


KINDS = [
    "glance-local",
    "curves",
    "spread-new",
    "alone-shares-new",
    "alone-marks-new",
    "pairs-gains",
    "cost-mb",
    "data",
]


def test_every_kind_of_chart_can_be_saved_as_a_picture(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    browser.open(pages["comparison"])
    browser.run(SHAPES)
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    names = [name.strip().replace(" ", "-") for name in CHARTS]
    for name in KINDS:
        browser.run(f"document.querySelectorAll('.save[value=svg]')[{names.index(name)}].click()")
        assert "<svg" in saved(tmp_path / f"{name}.svg").decode()
    assert b"fedavg + fine-tuning" in saved(tmp_path / "curves.svg")
    browser.run("document.querySelector('.save[value=png]').click()")
    picture = saved(tmp_path / "glance-local.png")
    assert picture.startswith(b"\x89PNG")
    wide = browser.run("document.querySelector('.chart').clientWidth")
    assert int.from_bytes(picture[16:20]) == 3 * wide
    assert browser.complaints() == []


def saved(path: Path) -> bytes:
    """A file that the browser is about to write."""
    deadline = time.monotonic() + 5
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return path.read_bytes()


def test_names_that_look_like_html_show_as_they_are(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["comparison"])
    browser.run(SHAPES)
    name = "<b>fail()</b>&lt;"
    ticks = "[...document.querySelectorAll('.chart[data-chart=glance] .ytick text')].map(tick => tick.textContent)"
    rows = "[...document.querySelectorAll('#figures tbody th span')].map(cell => cell.textContent)"
    assert name in browser.run(ticks)
    assert name in browser.run(rows)
    assert browser.complaints() == []


def test_what_is_printed_is_light_has_every_chart_and_no_controls(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["comparison"], scheme="dark")
    browser.run("""addEventListener('beforeprint', () => {
      window.folded = document.querySelectorAll('details.repeat:not([open])').length; })""")
    printed = as_printed(browser)
    assert browser.run("folded") == 0
    assert browser.run("document.querySelectorAll('details.repeat:not([open])').length") == 4
    assert printed["charts"] == len(CHARTS)
    assert printed["wide"] <= 680
    assert printed["ink"] == "rgb(28, 33, 38)"
    browser.call("Emulation.setEmulatedMedia", media="print")
    controls = "[...document.querySelectorAll('.controls, .copy, .saving, #theme')]"
    assert browser.run(f"{controls}.every(part => getComputedStyle(part).display === 'none')")
    assert browser.run("getComputedStyle(document.querySelector('.methods')).position") == "static"
    browser.call("Emulation.setEmulatedMedia", media="")


def test_what_can_be_used_has_a_name(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["comparison"])
    browser.run(SHAPES)
    tree = browser.call("Accessibility.getFullAXTree")["nodes"]
    used = (
        "button",
        "radio",
        "checkbox",
        "combobox",
        "image",
        "region",
        "table",
        "columnheader",
        "rowheader",
    )
    found = [
        (node["role"]["value"], node.get("name", {}).get("value"))
        for node in tree
        if not node["ignored"]
    ]
    parts = [(role, name) for role, name in found if role in used]
    assert {role for role, _ in parts} >= {
        "button",
        "radio",
        "checkbox",
        "combobox",
        "image",
        "columnheader",
    }
    assert [part for part in parts if not part[1] and part[0] != "table"] == []


def test_eight_methods_with_three_seeds_are_under_8_mb(
    browser: Browser, pages: dict[str, Path]
) -> None:
    assert pages["large"].stat().st_size < 8e6
    browser.open(pages["large"])
    drawn = dict(browser.run(SHAPES))
    assert list(drawn) == COUNTED
    assert all(drawn.values())
    assert browser.complaints() == []
