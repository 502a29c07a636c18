"""Commands about data sets: what there is, and what one looks like."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from fedtailor.cli import adding
from fedtailor.cli.tables import Json, table
from fedtailor.errors import require

LIST = "list"


class _ListedByDefault(TyperGroup):
    """`fedtailor data` lists; `fedtailor data NAME` tells of one, since no data set is called like a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        asked = args[:1] == ["--help"] or bool(args and args[0] in self.commands)
        return super().parse_args(ctx, args if asked else [LIST, *args])


app = typer.Typer(cls=_ListedByDefault, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@app.callback()
def data() -> None:
    """Lists the data sets, tells what options one has, shows who has which labels in it, and adds others.

    Examples:

        fedtailor data

        fedtailor data digits

        fedtailor data show digits clients=30
    """


@app.command(LIST)
def list_data(
    name: Annotated[str | None, typer.Argument(help="A data set, to see its options.")] = None, as_json: Json = False
) -> None:
    """Lists the data sets, or shows one: what it is, and its options with their defaults.

    Examples:

        fedtailor data

        fedtailor data digits

        fedtailor data --json
    """
    from fedtailor.run.catalogue import data_entry, data_list

    if as_json:
        print(json.dumps([data_entry(name)] if name else data_list(), indent=1))
    elif name:
        entry = data_entry(name)
        print(entry["description"])
        Console().print(table(entry["options"], "option", "default"))
    else:
        Console().print(table(data_list(), "data", "summary", "here"))
        print("`fedtailor data add NAME` downloads one, or reads files at hand with --from PATH.")


for command in adding.COMMANDS:
    app.command(no_args_is_help=True)(command)


@app.command(no_args_is_help=True)
def show(
    name: Annotated[str, typer.Argument(help="A data set, or an .npz file.", show_default=False)],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Options of it.", show_default=False)
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page to this file.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Draw at most so many clients.")] = None,
) -> None:
    """Draws who has which labels: a column for each client, a row for each label; and says it in figures.

    Examples:

        fedtailor data show digits

        fedtailor data show mnist partition=dirichlet alpha=0.1 clients=50 --html mnist.html
    """
    from fedtailor.disk import disk_trouble
    from fedtailor.run import picture

    options = _options(words or [])
    dataset = picture.load(name, **options)
    console = Console()
    counted = picture.label_table(dataset)
    for sentence in (f"{dataset.name}: {picture.summary(dataset, counted)}", *picture.sentences(dataset, counted)):
        console.print(sentence, markup=False, highlight=False)
    console.print(_grid(picture.said(counted)), highlight=False)
    for line in picture.drawn(counted, console.width, _plain(console), limit):
        console.print(line, highlight=False)
    if html:
        with disk_trouble(html, "mend that, or name another file."):
            picture.write(dataset, options, html)
        console.print(f"page written to {html}", highlight=False, markup=False, soft_wrap=True)


def _grid(rows: list[tuple[str, str]]) -> Table:
    made = Table.grid("", "", padding=(0, 2, 0, 0))
    for row in rows:
        made.add_row(*row)
    made.add_row()
    return made


def _options(words: list[str]) -> dict[str, Any]:
    """Options of a data set, also written as for a run: data.clients=50."""
    from fedtailor.run.spec import value_of

    for word in words:
        require("=" in word, f"'{word}' is not KEY=VALUE.")
    parts = [word.partition("=") for word in words]
    return {key.removeprefix("data."): value_of(text) for key, _, text in parts}


def _plain(console: Console) -> bool:
    """Whether to keep to ASCII: in a file or pipe, and where the encoding has no blocks."""
    return not console.is_terminal or "utf" not in (getattr(sys.stdout, "encoding", None) or "").lower()
