"""Pages that need nothing else: styles, numbers and scripts are inlined, and nothing is fetched.

All HTML is in templates, in the folders `templates` of the packages `html` and `dataset_page`.
They escape whatever they are given.
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

from fedtailor.errors import join_items
from fedtailor.reporting.html.formats import format_number
from fedtailor.reporting.html.wording import format_count

PACKAGE = "fedtailor.reporting.html"
PAGES = Environment(
    loader=PackageLoader("fedtailor.reporting", package_path=""),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
PAGES.filters |= {"number": format_number, "counted": format_count, "listed": join_items}


def make_page(
    template: str,
    view: Mapping[str, Any],
    numbers: Any,
    scripts: Sequence[str],
    style: str = "",
) -> str:
    """Return a page.

    Args:
        template: Path of the template in the package `fedtailor.reporting`.
        view: What the template shows, by name.
        numbers: What the scripts draw; becomes JSON.
        scripts: Sources that run in this order, after `theme.js`, plotly and `common.js`, and
            before `page.js`.
        style: CSS that is added to the report's.
    """
    theme = read_asset("theme.js")
    all_scripts = [_read_plotly(), read_asset("common.js"), *scripts, read_asset("page.js")]
    return PAGES.get_template(template).render(
        view,
        policy=_make_policy([theme, *all_scripts]),
        style=read_asset("page.css") + style,
        theme=theme,
        json=dump_json(numbers),
        scripts=all_scripts,
    )


def read_asset(name: str, package: str = PACKAGE) -> str:
    """Return the text of a file that comes with a package."""
    return resources.files(package).joinpath(name).read_text("utf-8")


def dump_json(value: Any) -> str:
    """Return JSON for a script element: five digits, null if not finite, no `<`, `>` or `&`."""
    text = json.dumps(_round_floats(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _make_policy(scripts: Iterable[str]) -> str:
    """Return a content security policy: these scripts may run, and nothing may be fetched."""
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _read_plotly() -> str:
    return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text("utf-8")


def _round_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _round_floats(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_round_floats(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value
