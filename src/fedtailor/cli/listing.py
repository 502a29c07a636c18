"""What commands that list things share: the `--json` option and plain tables."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedtailor.cli.terminal import print_as_json

if TYPE_CHECKING:
    from pydantic import BaseModel

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def print_json(entries: "Iterable[BaseModel]") -> None:
    """Print entries as a JSON list."""
    print_as_json([entry.model_dump(mode="json") for entry in entries])


def build_table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Return a table whose values are written as on the command line."""
    table = Table(*headings, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*map(_format_value, row))
    return table


def _format_value(value: Any) -> str:
    """Return a value as it is written on the command line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return json.dumps(value)
    return str(value)
