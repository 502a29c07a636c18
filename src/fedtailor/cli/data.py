"""Commands about data sets: what there is, and what one looks like."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from fedtailor.cli import install
from fedtailor.cli.listing import JsonFlag, build_table
from fedtailor.errors import require

LIST = "list"


class _ListByDefaultGroup(TyperGroup):
    """`fedtailor data` lists; `fedtailor data NAME` tells of one, since no data set is called like a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_command = args[:1] == ["--help"] or bool(args and args[0] in self.commands)
        return super().parse_args(ctx, args if is_command else [LIST, *args])


app = typer.Typer(
    cls=_ListByDefaultGroup, rich_markup_mode="markdown", pretty_exceptions_enable=False
)


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
    name: Annotated[str | None, typer.Argument(help="A data set, to see its options.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Lists the data sets, or shows one: what it is, and its options with their defaults.

    Examples:

        fedtailor data

        fedtailor data digits

        fedtailor data --json
    """
    from fedtailor.cli.catalog import describe_dataset, list_datasets

    if as_json:
        print(json.dumps([describe_dataset(name)] if name else list_datasets(), indent=1))
    elif name:
        entry = describe_dataset(name)
        print(entry["description"])
        Console().print(build_table(entry["options"], "option", "default"))
    else:
        Console().print(build_table(list_datasets(), "data", "summary", "here"))
        print("`fedtailor data add NAME` downloads one, or reads files at hand with --from PATH.")


for command in install.COMMANDS:
    app.command(no_args_is_help=True)(command)


@app.command(no_args_is_help=True)
def show(
    name: Annotated[str, typer.Argument(help="A data set, or an .npz file.", show_default=False)],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Options of it.", show_default=False),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Also write a page to this file.")
    ] = None,
    max_clients: Annotated[
        int | None, typer.Option("--limit", min=1, help="The most clients to draw.")
    ] = None,
) -> None:
    """Draws who has which labels: a column for each client, a row for each label; and says it in figures.

    Examples:

        fedtailor data show digits

        fedtailor data show mnist partition=dirichlet alpha=0.1 clients=50 --html mnist.html
    """
    from fedtailor.reporting import dataset_page
    from fedtailor.storage.atomic import explain_disk_errors

    options = _parse_options(args or [])
    dataset = dataset_page.load(name, **options)
    console = Console()
    labels = dataset_page.compute_label_table(dataset)
    for sentence in (
        f"{dataset.name}: {dataset_page.make_summary(dataset, labels)}",
        *dataset_page.list_notes(dataset, labels),
    ):
        console.print(sentence, markup=False, highlight=False)
    console.print(_build_grid(dataset_page.describe_figures(labels)), highlight=False)
    for line in dataset_page.draw_labels(
        labels, console.width, _is_ascii_only(console), max_clients
    ):
        console.print(line, highlight=False)
    if html:
        with explain_disk_errors(html, "mend that, or name another file."):
            dataset_page.write_page(dataset, options, html)
        console.print(f"page written to {html}", highlight=False, markup=False, soft_wrap=True)


def _build_grid(rows: list[tuple[str, str]]) -> Table:
    grid = Table.grid("", "", padding=(0, 2, 0, 0))
    for row in rows:
        grid.add_row(*row)
    grid.add_row()
    return grid


def _parse_options(args: list[str]) -> dict[str, Any]:
    """Options of a data set, also written as for a run: data.clients=50."""
    from fedtailor.training.overrides import parse_value

    for arg in args:
        require("=" in arg, f"'{arg}' is not KEY=VALUE.")
    parts = [arg.partition("=") for arg in args]
    return {key.removeprefix("data."): parse_value(text) for key, _, text in parts}


def _is_ascii_only(console: Console) -> bool:
    """Whether to keep to ASCII: in a file or pipe, and where the encoding has no blocks."""
    return (
        not console.is_terminal
        or "utf" not in (getattr(sys.stdout, "encoding", None) or "").lower()
    )
