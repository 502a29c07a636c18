"""The report in a real browser: its charts, its controls, and that nothing is fetched."""

import itertools
import time
from pathlib import Path

import pytest

from browsing import NARROW, SHAPES, WIDE, Browser, as_printed, needs_chromium
from fedtailor.reporting import html
from fedtailor.training.record.schema import RunRecord
from sample_records import (
    add_passes,
    convert_to_regression,
    lose_all_clients,
    make_comparison,
    make_record,
    remove_unseen_clients,
    replace_scores,
    scale_work,
    truncate,
)

pytest_plugins = ["browsers"]

pytestmark = needs_chromium

HTML_NAME = "<b>fail()</b>&lt;"
"""The name of a method that looks like HTML."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the paths of reports of several kinds."""
    folder = tmp_path_factory.mktemp("reports")
    methods = make_comparison({"local": 0.5, "fedavg": 0.6, "fedsim": 0.7})
    records = {
        "comparison": [*methods, *make_comparison({HTML_NAME: 0.55})],
        "one": [make_record()],
        "running": [truncate(make_record(), 4)],
        "not evaluated": [truncate(make_record(), 1)],
        "regression": [convert_to_regression(record) for record in methods],
        "large": make_large_comparison(),
        "work": [scale_work(record, factor) for factor, record in enumerate(methods, 1)],
        "one group": [remove_unseen_clients(record) for record in methods],
        "diverged": [
            lose_all_clients(record) if record.name == "fedsim" else record for record in methods
        ],
    }
    paths = {name: folder / f"{name}.html" for name in records}
    for name, path in paths.items():
        html.write_report(records[name], path)
    return paths


def make_large_comparison() -> list[RunRecord]:
    """Return eight methods with three seeds and many clients, one of them with a very long name."""
    names = [
        "local",
        "fedavg",
        "fedprox",
        "fedsim@tuned",
        "fsl+per+fedmeta@with-a-very-long-label-of-its-own",
        "pfedme",
        "lg-fedavg",
        "per-fedavg",
    ]
    skills = {name: 0.5 + rank / 50 for rank, name in enumerate(names)}
    runs = make_comparison(skills, num_clients=300, num_rounds=100)
    return [add_passes(run) for run in runs]


CURVES = [
    "glance participating",
    "glance unseen",
    "curves ",
    "spread participating",
    "spread unseen",
]
LOCAL = [
    "local shares participating",
    "local shares unseen",
    "local marks participating",
    "local marks unseen",
]
PAIRS = ["pairs marks", "pairs gains"]
COSTS = ["cost mb", "cost flops", "cost steps", "cost seconds"]
CHARTS = [*CURVES, *LOCAL, *PAIRS, *COSTS, "data "]
CHARTS_OF_ONE_RUN = [*CURVES, *PAIRS, *COSTS, "data "]
CHARTS_OF_ONE_GROUP = [name for name in CHARTS if not name.endswith(" unseen")]


@pytest.mark.parametrize(
    ("name", "size", "scheme", "expected"),
    [
        ("comparison", WIDE, "light", CHARTS),
        ("one", NARROW, "light", CHARTS_OF_ONE_RUN),
        ("regression", WIDE, "dark", CHARTS),
        ("one group", WIDE, "dark", CHARTS_OF_ONE_GROUP),
        ("diverged", NARROW, "light", CHARTS),
        ("large", NARROW, "dark", CHARTS),
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
    num_shapes = dict(browser.run(SHAPES))
    assert list(num_shapes) == expected
    assert all(num_shapes.values()), num_shapes
    assert browser.requests() == [pages[name].as_uri()]
    assert browser.run("performance.getEntriesByType('resource').length") == 0
    assert browser.run("document.documentElement.scrollWidth") == size[0]
    assert browser.complaints() == []


@pytest.mark.parametrize(("name", "expected"), [("running", ["curves "]), ("not evaluated", [])])
def test_a_run_in_progress_shows_its_curve_its_costs_and_its_data(
    browser: Browser, pages: dict[str, Path], name: str, expected: list[str]
) -> None:
    browser.open(pages[name])
    num_shapes = dict(browser.run(SHAPES))
    assert list(num_shapes) == [*expected, *COSTS, "data "]
    assert all(num_shapes.values()), num_shapes
    assert "In progress" in browser.run("document.querySelector('.status').textContent")
    assert browser.complaints() == []


@pytest.mark.parametrize("name", ["large", "regression"])
def test_every_control_changes_its_charts(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    browser.open(pages[name])
    browser.run(SHAPES)
    unchanged = browser.run("""(() => {
      const find = kind => [...document.querySelectorAll(`.chart[data-chart="${kind}"]`)];
      const read = kind => find(kind).map(place => place.innerHTML).join();
      const fields = [...document.querySelectorAll('.controls input:not(:checked)')];
      return fields.map(field => {
        const kind = field.name.split('-')[0];
        const before = read(kind);
        field.click();
        return read(kind) === before ? field.name + ' ' + field.value : null;
      }).filter(Boolean);
    })()""")
    assert unchanged == []
    assert browser.complaints() == []


SELECT = """((name, value) => {
  const list = document.querySelector(`select[name=${name}]`);
  list.value = String(value);
  list.dispatchEvent(new Event('change', {bubbles: true}));
})"""
OPTIONS = """[...document.querySelector('select[name={}]').options]
  .map(option => [option.value, option.label])"""


def test_clients_of_the_chosen_method_are_shown(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["comparison"])
    browser.run(SHAPES)
    readout = "document.getElementById('pairs-readout').textContent"
    for value, label in browser.run(OPTIONS.format("pairs-line")):
        browser.run(f"{SELECT}('pairs-line', {value})")
        assert browser.run(readout).startswith(f"{label}:")
    compared = browser.run(OPTIONS.format("local-line"))
    assert [label for _, label in compared] == ["fedavg + fine-tuning", "fedsim", HTML_NAME]
    chart = "document.querySelector('.chart[data-group=\"marks unseen\"]')"
    for value, label in compared:
        browser.run(f"{SELECT}('local-line', {value})")
        words = browser.run(f"{chart}.getAttribute('aria-label')")
        assert words.startswith(f"{label}, accuracy of unseen clients: ")
    assert browser.complaints() == []


def test_a_mark_compares_a_client_with_itself_under_local_training(
    browser: Browser, tmp_path: Path
) -> None:
    local = replace_scores(make_record("local"), "participating", [0.1] * 3, [0.5, 0.5, 0.25])
    other = replace_scores(make_record("fedsim"), "participating", [0.1] * 3, [0.75, 0.75, 0.125])
    html.write_report([local, other], tmp_path / "pair.html")
    browser.open(tmp_path / "pair.html")
    browser.run(SHAPES)
    chart = "document.querySelector('[data-group=\"marks participating\"]')"
    xs, ys, texts = browser.run(f"(({{x, y, text}}) => [x, y, text])({chart}.data[1])")
    assert (xs, ys) == ([50, 25], [75, 12.5])
    clients = "participating-0, seed 1<br>participating-1, seed 1<br>"
    assert texts[0].startswith(f"{clients}local 50")
    shares = browser.run(
        "document.querySelector('[data-group=\"shares participating\"]').data.map(bar => bar.x[0])"
    )
    assert shares == pytest.approx([200 / 3, 0, 100 / 3])


def choose_x(browser: Browser, x: str) -> None:
    """Show curves against "round", "mb" or "flops"."""
    browser.run(f"document.querySelector('input[name=curves-x][value={x}]').click()")


CURVES_CHART = "document.querySelector('.chart[data-chart=curves]')"


def test_curves_can_be_seen_against_rounds_bytes_and_work(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["work"])
    browser.run(SHAPES)
    titles = []
    ends = []
    for x in ("round", "mb", "flops"):
        choose_x(browser, x)
        titles.append(browser.run(f"{CURVES_CHART}.layout.xaxis.title.text"))
        named = f"{CURVES_CHART}.data.filter(trace => trace.name)"
        ends.append(browser.run(f"{named}.map(trace => trace.x.at(-1))"))
    assert titles == ["round", "MB sent, down and up together", "GFLOP of clients"]
    assert ends[0] == [10, 10, 10]
    assert ends[1] == pytest.approx([3.7] * 3)
    # The means of factors 1 to 3, 4 to 6 and 7 to 9, of 2 GFLOP in each of 10 rounds.
    assert ends[2] == pytest.approx([40, 100, 160])


def test_names_at_the_ends_of_curves_do_not_touch(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["large"])
    browser.run(SHAPES)
    texts = f"[...{CURVES_CHART}.querySelectorAll('.annotation-text')]"
    boxes = browser.run(f"""{texts}.map(text => {{
      const {{top, bottom, right}} = text.getBoundingClientRect();
      return [top, bottom, right];
    }})""")
    assert len(boxes) == 8
    boxes.sort()
    assert all(below[0] >= above[1] - 2 for above, below in itertools.pairwise(boxes))
    edge = browser.run(f"{CURVES_CHART}.getBoundingClientRect().right")
    assert max(right for _, _, right in boxes) <= edge
    names = browser.run(f"{texts}.map(text => text.textContent).join()")
    assert "fsl+per+fedmeta@with-a-v\u2026" in names or "fsl+per+fedmeta@with-a-\u2026" in names


def test_a_method_that_trains_in_no_round_is_a_level_line(browser: Browser, tmp_path: Path) -> None:
    local = make_record("local")
    no_work = {"bytes_down": 0, "bytes_up": 0, "steps": 0}
    rounds = [entry.model_copy(update={**no_work, "scores": None}) for entry in local.rounds[:-1]]
    rounds.append(local.rounds[-1].model_copy(update=no_work))
    assert local.cost is not None
    cost = local.cost.model_copy(update=no_work)
    still = local.model_copy(update={"rounds": rounds, "cost": cost})
    html.write_report([still, make_record()], tmp_path / "still.html")
    browser.open(tmp_path / "still.html")
    browser.run(SHAPES)
    for x, end in (("round", 10), ("mb", 3.7)):
        choose_x(browser, x)
        xs, ys = browser.run(f"(({{x, y}}) => [x, y])({CURVES_CHART}.data[0])")
        assert xs == pytest.approx([0, end])
        assert ys[0] == ys[1]


def test_a_method_can_be_hidden_in_every_chart(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["comparison"])
    browser.run(SHAPES)
    labels = (
        "[...document.querySelectorAll('.chart')]"
        ".map(place => place.getAttribute('aria-label')).join()"
    )
    assert "local 5" in browser.run(labels)

    def toggle(line_idx: int) -> None:
        box = f'input[name=line][value="{line_idx}"]'
        browser.run(f"document.querySelector('{box}').click()")

    toggle(0)
    assert "local 5" not in browser.run(labels)
    for line_idx in (1, 2, 3):
        toggle(line_idx)
    others = ":not([data-chart=data], [data-chart=pairs], [data-group^=marks])"
    empty = f"[...document.querySelectorAll('.chart{others}')]"
    texts = set(browser.run(f"{empty}.map(place => place.textContent)"))
    assert texts == {"Nothing to show for this choice."}
    toggle(2)
    first_label = browser.run("document.querySelector('.chart').getAttribute('aria-label')")
    assert first_label.count("fedsim") == 1
    assert browser.complaints() == []


def test_the_table_is_sorted_by_keyboard_and_says_so(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["comparison"])

    def read_column(index: int) -> list[str]:
        rows = "[...document.querySelectorAll('#figures tbody tr')]"
        values: list[str] = browser.run(f"{rows}.map(row => row.cells[{index}].dataset.value)")
        return values

    order = (
        "[...document.querySelectorAll('#figures [aria-sort]')]"
        ".map(heading => heading.getAttribute('aria-sort'))"
    )
    browser.run("document.querySelectorAll('#figures thead button')[2].focus()")
    browser.key("Enter", "\r")
    values = read_column(2)
    scores = [float(value) for value in values[:-1]]
    assert scores == sorted(scores, reverse=True)
    assert values[-1] == ""
    assert browser.run(order)[2] == "descending"
    browser.key("Enter", "\r")
    assert read_column(2) == [*values[-2::-1], ""]
    assert browser.run(order)[2] == "ascending"
    browser.run("document.querySelector('#figures thead button').click()")
    assert browser.run(order) == ["ascending", *["none"] * 12]
    assert read_column(0)[1:] == ["fedavg", "fedavg + fine-tuning", "fedsim", "local"]


def test_the_theme_follows_the_system_until_the_button_is_used(
    browser: Browser, pages: dict[str, Path]
) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    text = "getComputedStyle(document.querySelector('.chart text')).fill"
    browser.open(pages["one"])
    # A test before may have left a choice.
    browser.run("sessionStorage.clear()")
    browser.open(pages["one"])
    browser.run(SHAPES)
    light = browser.run(paper), browser.run(text)
    browser.look(WIDE, "dark")
    browser.run(f"""new Promise(done => {{
      const wait = left => {{
        if ({paper} !== {light[0]!r} || !left) setTimeout(done, 50);
        else setTimeout(wait, 50, left - 1);
      }};
      wait(100);
    }})""")
    dark = browser.run(paper), browser.run(text)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    browser.run("document.getElementById('theme').click()")
    assert (browser.run(paper), browser.run(text)) == light
    browser.open(pages["one"], scheme="dark")
    assert browser.run(paper) == light[0]
    browser.run("sessionStorage.clear()")


def test_a_command_is_copied_with_and_without_a_clipboard(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["one"])
    # The clipboard works once; then the page must select the text and copy it.
    browser.run("""window.copied = [];
      document.addEventListener('copy', () => copied.push(String(getSelection())));
      Object.defineProperty(navigator, 'clipboard', {value: {writeText: async text => {
        if (copied.length) throw new Error('not allowed');
        copied.push(text);
      }}})""")
    click = "document.querySelector('.copy').click(); new Promise(done => setTimeout(done, 50))"
    browser.run(click)
    browser.run(click)
    command = make_record().command
    assert browser.run("copied") == [command, command]
    assert browser.run("document.querySelector('.copy').textContent") == "Copied"


SAVED_CHARTS = [
    "glance-participating",
    "curves",
    "spread-unseen",
    "local-shares-unseen",
    "local-marks-unseen",
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
    for name in SAVED_CHARTS:
        browser.run(f"document.querySelectorAll('.save[value=svg]')[{names.index(name)}].click()")
        assert "<svg" in read_download(tmp_path / f"{name}.svg").decode()
    assert b"fedavg + fine-tuning" in read_download(tmp_path / "curves.svg")
    browser.run("document.querySelector('.save[value=png]').click()")
    picture = read_download(tmp_path / "glance-participating.png")
    assert picture.startswith(b"\x89PNG")
    width = browser.run("document.querySelector('.chart').clientWidth")
    assert int.from_bytes(picture[16:20]) == 3 * width
    assert browser.complaints() == []


def read_download(path: Path) -> bytes:
    """Return the content of a file that the browser is about to write."""
    deadline = time.monotonic() + 5
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return path.read_bytes()


def test_names_that_look_like_html_show_as_they_are(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["comparison"])
    browser.run(SHAPES)
    for selector in (".chart[data-chart=glance] .ytick text", "#figures tbody th span"):
        elements = f"[...document.querySelectorAll('{selector}')]"
        assert HTML_NAME in browser.run(f"{elements}.map(element => element.textContent)")
    assert browser.complaints() == []


def test_what_is_printed_is_light_has_every_chart_and_no_controls(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["comparison"], scheme="dark")
    browser.run("""addEventListener('beforeprint', () => {
      window.folded = document.querySelectorAll('details.repeat:not([open])').length;
    })""")
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
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    required_roles = {"button", "radio", "checkbox", "combobox", "image", "columnheader"}
    all_roles = {*required_roles, "region", "table", "rowheader"}
    parts = [
        (node["role"]["value"], node.get("name", {}).get("value"))
        for node in nodes
        if not node["ignored"]
    ]
    parts = [(role, name) for role, name in parts if role in all_roles]
    assert {role for role, _ in parts} >= required_roles
    assert [role for role, name in parts if not name and role != "table"] == []


def test_eight_methods_with_three_seeds_are_under_8_mb(
    browser: Browser, pages: dict[str, Path]
) -> None:
    assert pages["large"].stat().st_size < 8e6
    browser.open(pages["large"])
    num_shapes = dict(browser.run(SHAPES))
    assert list(num_shapes) == CHARTS
    assert all(num_shapes.values())
    assert browser.complaints() == []
