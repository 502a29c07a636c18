"""What commands that list things share."""

import json
from typing import Annotated, Any

import typer
from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def table(rows: list[dict[str, Any]], *columns: str) -> Table:
    """Rows under the names of these of their columns."""
    made = Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        made.add_row(*(_typed(row[column]) for column in columns))
    return made


def _typed(value: Any) -> str:
    """A value as it is written on the command line."""
    return json.dumps(value) if isinstance(value, bool) else "none" if value is None else str(value)
