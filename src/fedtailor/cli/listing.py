"""What commands that list things share."""

import json
from typing import Annotated, Any

import typer
from rich.table import Table

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def build_table(rows: list[dict[str, Any]], *columns: str) -> Table:
    """Rows under the names of these of their columns."""
    table = Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*(_format_value(row[column]) for column in columns))
    return table


def _format_value(value: Any) -> str:
    """A value as it is written on the command line."""
    return json.dumps(value) if isinstance(value, bool) else "none" if value is None else str(value)
