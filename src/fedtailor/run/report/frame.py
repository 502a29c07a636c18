"""The frame of a page that needs nothing else: styles, numbers and scripts inlined, and the network forbidden."""

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from string import Template
from typing import Any

from fedtailor.run.report.pieces import text

HERE = "fedtailor.run.report"


def framed(title: str, body: str, numbers: Any, scripts: Sequence[str], style: str = "") -> str:
    """A page with a title (plain), a body (HTML), the numbers that its scripts draw, and styles besides the report's.

    Scripts run in their order, after `theme.js`, plotly and `common.js`, and before `page.js`.
    """
    theme = own("theme.js")
    running = [_plotly(), own("common.js"), *scripts, own("page.js")]
    return Template(own("frame.html")).substitute(
        policy=_policy([theme, *running]),
        title=text(title),
        style=own("page.css") + style,
        theme=theme,
        body=body,
        json=as_json(numbers),
        scripts="\n".join(f"<script>{script}</script>" for script in running),
    )


def own(name: str, package: str = HERE) -> str:
    """A file that comes with the package, as text."""
    return resources.files(package).joinpath(name).read_text("utf-8")


def as_json(value: Any) -> str:
    """JSON that can stand inside a script element: five digits, null for what is not finite, no `<`, `>` or `&`."""
    text = json.dumps(_rounded(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(scripts: Iterable[str]) -> str:
    """Nothing may be fetched, and no script may run but those of the page, which are known by their hashes."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _plotly() -> str:
    return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text("utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value
