"""What commands that list things share: the `--json` option and plain tables."""

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.table import Table

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def build_table(rows: Iterable[dict[str, Any]], *columns: str) -> Table:
    """Return a table of some of the rows' columns, headed by their keys."""
    table = Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*(_format_value(row[column]) for column in columns))
    return table


def _format_value(value: Any) -> str:
    """Return a value as it is written on the command line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return json.dumps(value)
    return str(value)
