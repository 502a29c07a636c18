"""Puts what `make bench` measured into README.md, between its markers, and draws it: python
benchmarks/report.py.
"""

import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from plots import Bar, Panel, svg
from results import FOLDER, in_words, load, spread

README = Path(__file__).parent / "README.md"
NAMES = {
    "ours": "**fedtailor**, compiled",
    "ours-tf32": "**fedtailor**, compiled, tf32",
    "ours-bf16": "**fedtailor**, compiled, bf16",
    "dataloader": "DataLoader loop",
    "dataloader-1": "DataLoader loop, 1 thread",
    "pfl": "pfl-research",
    "fedjax": "FedJAX, jit",
    "flwr": "Flower simulation",
}
Found = dict[str, Any]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def times_ours(case: Found, way: str, ours: str) -> list[float]:
    """How many times as long as this project a way took, turn by turn."""
    return [theirs / own for theirs, own in zip(case["ms"][way], case["ms"][ours], strict=True)]


def ratio(values: Sequence[float]) -> str:
    """A ratio with its spread."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def peers(found: Found, name: str) -> str:
    """Every way in every case, and as bars."""
    cases = found["cases"]
    ours = [way for way in cases[0]["ms"] if way.startswith("ours")]
    heads = [f"of {way.partition('-')[2]}'s" if "-" in way else "of ours" for way in ours]
    head = ["", *(cell for case in cases for cell in (f"{case['title']}, ms a round", *heads))]
    rows = []
    for way in [way for way in NAMES if any(way in case["ms"] for case in cases)]:
        cells = [_cells(case, way, ours) for case in cases]
        rows.append([NAMES[way], *(cell for several in cells for cell in several)])
    panels = [Panel(f"{case['title']}: ms a round", _bars(case)) for case in cases]
    (FOLDER / f"{name}.svg").write_text(svg(panels))
    gap = max(gap for case in cases for gap in case["gaps"].values())
    versions = ", ".join(
        f"{name} {number}" for name, number in sorted(cases[0]["versions"].items())
    )
    steps = ", ".join(str(case["steps"]) for case in cases)
    checked = (
        f"Gradient steps in a round, the same for all: {steps}. Weights at the end differ from "
        "the loop's by at most "
        f"{gap:.0e} of how far these have moved. {versions}; {in_words(found['machine'])}"
    )
    return "\n\n".join(
        [table(head, rows), f"![Milliseconds per round](results/{name}.svg)", checked]
    )


def _cells(case: Found, way: str, ours: Sequence[str]) -> list[str]:
    if way not in case["ms"]:
        return [""] * (1 + len(ours))
    return [spread(case["ms"][way]), *(_beside(case, way, own) for own in ours)]


def _beside(case: Found, way: str, ours: str) -> str:
    return "1" if way == ours else ratio(times_ours(case, way, ours))


def _bars(case: Found) -> list[Bar]:
    ways = case["ms"].items()
    return [
        Bar(NAMES[way].replace("*", ""), ms, f"{statistics.median(ms):.0f}", way.startswith("ours"))
        for way, ms in ways
    ]


def costs(found: Found, name: str) -> str:
    """Every part as a table; cohorts and methods as bars too."""
    parts = [
        _part(found["cohort"], "clients a round", {"ms a client": _ms_a_client}),
        _part(
            found["imbalance"],
            "examples of 20 clients",
            {"examples": _whole("examples"), "steps": _whole("steps")},
        ),
        _part(found["population"], "people", {"making and checking the data, s": _seconds}),
        _part(found["model"], "model, 10 clients", {"parameters": _whole("parameters")}),
        _part(found["methods"], "method, 20 clients", {"gradients": _whole("gradients")}),
        _part(
            found["client_state"],
            "clients at a time, of 32",
            {"RAM before, MB": _whole("before_mb"), "most, MB": _whole("most_mb")},
        ),
    ]
    cohort = [
        Bar(row["what"], [ms / row["clients"] for ms in row["ms"]], _ms_a_client(row), True)
        for row in found["cohort"]
    ]
    each = [
        Bar(row["what"], row["ms"], _of_first(found["methods"], row), True)
        for row in found["methods"]
    ]
    panels = [
        Panel("By clients a round: ms a client", cohort),
        Panel("By method: ms a round, and of FedAvg's", each),
    ]
    (FOLDER / f"{name}.svg").write_text(svg(panels))
    return "\n\n".join([*parts, f"![Costs](results/{name}.svg)", in_words(found["machine"])])


def _part(rows: Sequence[Found], first: str, more: dict[str, Callable[[Found], str]]) -> str:
    head = [first, "ms a round", "of the first row's", *more]
    return table(
        head,
        [
            [r["what"], spread(r["ms"]), _of_first(rows, r), *(say(r) for say in more.values())]
            for r in rows
        ],
    )


def _of_first(rows: Sequence[Found], row: Found) -> str:
    return f"{statistics.median(row['ms']) / statistics.median(rows[0]['ms']):.2f}"


def _ms_a_client(row: Found) -> str:
    return f"{statistics.median(row['ms']) / row['clients']:.2f}"


def _seconds(row: Found) -> str:
    return f"{row['setup_s']:.1f}"


def _whole(key: str) -> Callable[[Found], str]:
    return lambda row: f"{row[key]:,.0f}"


def engines(found: Found, name: str) -> str:
    """The engines beside a plain loop that is given batches, without a DataLoader."""
    ways = [way for way in found["clients"]["10"] if way != "loop"]
    head = ["clients", "loop", *ways, *(f"loop / {way}" for way in ways)]
    rows = []
    for clients, times in found["clients"].items():
        middle = {way: statistics.median(ms) for way, ms in times.items()}
        ratios = (f"{middle['loop'] / middle[way]:.1f}" for way in ways)
        rows.append([clients, *(spread(ms) for ms in times.values()), *ratios])
    return f"{table(head, rows)}\n\n{in_words(found['machine'])}"


def costs_gpu(found: Found, name: str) -> str:
    """What was measured on a GPU beside something else, a table for each."""
    tables = []
    for title, ways in found["parts"].items():
        first = statistics.median(next(iter(ways.values()))["ms"])
        times = {way: each["ms"] for way, each in ways.items()}
        rows = [
            [way, spread(ms), f"{statistics.median(ms) / first:.2f}"] for way, ms in times.items()
        ]
        tables.append(table([title, "ms", "of the first row's"], rows))
    return "\n\n".join([*tables, in_words(found["machine"])])


def filled(text: str, name: str, content: str) -> str:
    """A text with something else between two markers."""
    begin, end = f"<!-- {name}: made by benchmarks/report.py -->", f"<!-- end of {name} -->"
    if begin not in text or end not in text:
        raise SystemExit(f"README.md has no markers for {name}.")
    return re.sub(
        f"{re.escape(begin)}.*?{re.escape(end)}",
        lambda _: f"{begin}\n\n{content}\n\n{end}",
        text,
        flags=re.S,
    )


def main() -> None:
    """Writes whatever has been measured."""
    text = README.read_text()
    cpu = {"peers": peers, "engines": engines, "costs": costs}
    for name, say in {**cpu, "peers-gpu": peers, "costs-gpu": costs_gpu}.items():
        if (found := load(name)) is not None:
            text = filled(text, name, say(found, name))
    README.write_text(text)


if __name__ == "__main__":
    main()
