"""What a report's page holds, for its tests."""

import json
import re
from typing import Any

import pytest


def payload_of(page: str) -> Any:
    """The numbers that the page's scripts draw."""
    found = re.search(
        r'<script type="application/json" id="report">(.*?)</script>', page, re.DOTALL
    )
    assert found
    return json.loads(found[1], parse_constant=pytest.fail)


def cells(page: str) -> dict[str, list[str]]:
    """Row label -> the texts of its cells."""
    body = page[page.index("<tbody>") : page.index("</tbody>")]
    rows = [re.split(r"<t[hd]\b[^>]*>", row)[1:] for row in body.split("<tr>")[1:]]
    plain = [[re.sub(r"<[^>]+>", " ", cell).split() for cell in row] for row in rows]
    return {" ".join(row[0]): [" ".join(cell) for cell in row[1:]] for row in plain}
