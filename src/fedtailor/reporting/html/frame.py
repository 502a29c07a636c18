"""Frame pages that need nothing else: styles, numbers and scripts inlined, and no network.

All HTML is in templates, in the folders `templates` of the packages `html` and `dataset_page`.
Whatever they are given is escaped.
"""

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedtailor.reporting.html.formats import format_number
from fedtailor.reporting.html.wording import format_count, join_words

PACKAGE = "fedtailor.reporting.html"
PAGES = Environment(
    loader=PackageLoader("fedtailor.reporting", package_path=""),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
PAGES.filters |= {"number": format_number, "counted": format_count, "listed": join_words}


def make_page(
    template: str,
    view: Mapping[str, Any],
    numbers: Any,
    scripts: Sequence[str],
    style: str = "",
) -> str:
    """Return a page with what its template shows, and with the numbers that its scripts draw.

    Scripts run in their order, after `theme.js`, plotly and `common.js`, and before `page.js`. The
    style comes after the report's.
    """
    theme = read_own("theme.js")
    running = [_read_plotly(), read_own("common.js"), *scripts, read_own("page.js")]
    return PAGES.get_template(template).render(
        view,
        policy=_make_policy([theme, *running]),
        style=read_own("page.css") + style,
        theme=theme,
        json=dump_json(numbers),
        scripts=running,
    )


def read_own(name: str, package: str = PACKAGE) -> str:
    """Return the text of a file that comes with the package."""
    return resources.files(package).joinpath(name).read_text("utf-8")


def dump_json(value: Any) -> str:
    """Return JSON for a script element: five digits, null if not finite, no `<`, `>` or `&`."""
    text = json.dumps(_round(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _make_policy(scripts: Iterable[str]) -> str:
    """Forbid to fetch anything, and to run other scripts than those with these hashes."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _read_plotly() -> str:
    return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text("utf-8")


def _round(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _round(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_round(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value
