"""Results as tables in docs/agreement.md, between markers."""

import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anchor.plain_loops import LOOPS
from anchor.published import PUBLISHED, Published
from results import in_words

PAGE = Path(__file__).parents[2] / "docs" / "agreement.md"

NOT_RUN = "not run"
LAST_SHARE = 0.1
"""Share of a run's rounds, its last ones, whose evaluations are averaged."""

Found = dict[str, Any]
Curve = Sequence[float]
"""The accuracies of a run's evaluations."""


def average_last(curve: Curve) -> float:
    """Return the mean over the evaluations of the last rounds, at least one."""
    count = max(1, round(LAST_SHARE * len(curve)))
    return statistics.fmean(curve[-count:])


def format_spread(values: Sequence[float]) -> str:
    """Return the mean and the standard deviation; without the latter for one value."""
    mean = f"{statistics.fmean(values):.2f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(values):.2f}"


def render_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def render_case(name: str, found: Found | None) -> str:
    """Return the table of a set, with what was run and where.

    Args:
        name: The set.
        found: Its results; None: it was not run.
    """
    published = PUBLISHED.get(name)
    head = ["method"]
    if published is not None:
        head.append("published, best round on test")
    head += [
        "fedtailor, best round on test",
        "fedtailor, last rounds",
        "plain loop, last rounds",
        "a weight apart, after round 1",
        "at the end",
    ]
    methods = list(LOOPS) if found is None else list(found["methods"])
    rows = [_render_row(method, published, found) for method in methods]
    parts = [render_table(head, rows)]
    if published is not None:
        parts.append(f"Published: {published.source}.")
    parts.append(_describe_run(found))
    return "\n\n".join(parts)


def _render_row(method: str, published: Published | None, found: Found | None) -> list[str]:
    row = [method]
    if published is not None:
        row.append(_format_published(published, method))
    if found is None:
        return [*row, *[NOT_RUN] * 5]
    results = found["methods"][method]
    ours = list(results["ours"].values())
    row.append(format_spread([max(curve) for curve in ours]))
    row.append(format_spread([average_last(curve) for curve in ours]))
    loops = list(results["loop"].values())
    if not loops:
        return [*row, *[NOT_RUN] * 3]
    row.append(format_spread([average_last(curve) for curve in loops]))
    row.append(f"{max(results['gap after round 1'].values()):.0e}")
    row.append(f"{max(results['gap'].values()):.0e}")
    return row


def _format_published(published: Published, method: str) -> str:
    if method not in published.accuracies:
        return "none"
    mean, deviation = published.accuracies[method]
    return f"{mean:.2f} ± {deviation:.2f}"


def _describe_run(found: Found | None) -> str:
    if found is None:
        return "Nothing of this table was run here but what is published."
    setting = found["setting"]
    seeds = ", ".join(str(seed) for seed in setting["seeds"])
    parts = [
        f"{setting['clients']} clients, {setting['rounds']} rounds, evaluated every "
        f"{setting['eval_every']}, seeds {seeds} (± is the standard deviation over them), "
        f"{setting['dtype']}; `{found['command']}`; {in_words(found['machine'])}"
    ]
    scored_at_w = found["methods"].get("pfedme", {}).get("scored at w_i", {})
    if scored_at_w:
        figure = format_spread([average_last(curve) for curve in scored_at_w.values()])
        parts.append(f"pFedMe scored at w_i, as PFLlib scores it: {figure} in the last rounds.")
    return " ".join(parts)


def fill(text: str, name: str, content: str) -> str:
    """Return a text with something else between two markers."""
    begin = f"<!-- {name}: made by benchmarks/agree.py -->"
    end = f"<!-- end of {name} -->"
    if begin not in text or end not in text:
        raise SystemExit(f"agree: {PAGE.name} has no markers for {name}.")
    return re.sub(
        f"{re.escape(begin)}.*?{re.escape(end)}",
        lambda _: f"{begin}\n\n{content}\n\n{end}",
        text,
        flags=re.DOTALL,
    )


def render_page(text: str, results: dict[str, Found | None]) -> str:
    """Return the page with the tables of all sets.

    Args:
        text: The page as it is.
        results: The results of each set; None: it was not run.
    """
    for name, found in results.items():
        text = fill(text, name, render_case(name, found))
    return text
