"""Commands about data sets: data list, data show, and those of `install`."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from fedtailor.cli import install
from fedtailor.cli.listing import JsonFlag, build_table, print_json
from fedtailor.cli.terminal import TerminalConsole, format_path, print_text
from fedtailor.errors import require

LIST = "list"
"""Name of the default command."""


class _ListByDefaultGroup(TyperGroup):
    """A group that runs `list` unless the first argument is a command.

    `fedtailor data` lists data sets, and `fedtailor data NAME` shows one; no data set has the name
    of a command.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_command = bool(args) and (args[0] == "--help" or args[0] in self.commands)
        return super().parse_args(ctx, args if is_command else [LIST, *args])


app = typer.Typer(
    cls=_ListByDefaultGroup, rich_markup_mode="markdown", pretty_exceptions_enable=False
)


@app.callback()
def data() -> None:
    """List data sets, show the options of one and how its labels are distributed, or add others.

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
    """List data sets, or describe one and show its options with their defaults.

    Examples:

        fedtailor data

        fedtailor data digits

        fedtailor data --json
    """
    from fedtailor.cli.catalog import describe_dataset, list_datasets

    if as_json:
        print_json(list_datasets() if name is None else [describe_dataset(name)])
        return
    console = TerminalConsole()
    if name is None:
        rows = [(entry.data, entry.summary, entry.status) for entry in list_datasets()]
        console.print(build_table(("data", "summary", "status"), rows))
        print("`fedtailor data add NAME` downloads one, or reads local files with --from PATH.")
        return
    entry = describe_dataset(name)
    print_text(entry.description)
    options = [(option.name, option.default) for option in entry.options]
    console.print(build_table(("option", "default"), options))


for command in install.COMMANDS:
    app.command(no_args_is_help=True)(command)


@app.command(no_args_is_help=True)
def show(
    name: Annotated[str, typer.Argument(help="A data set, or an .npz file.", show_default=False)],
    args: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Options of the data set.", show_default=False
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Also write an HTML page to this file.")
    ] = None,
    max_clients: Annotated[
        int | None, typer.Option("--limit", min=1, help="Maximum number of clients to draw.")
    ] = None,
) -> None:
    """Show how labels are distributed over clients: a column per client, a row per label.

    `seed=3` shows the data of a run with seed 3.

    Examples:

        fedtailor data show digits

        fedtailor data show mnist partition=dirichlet alpha=0.1 clients=50 --html mnist.html
    """
    from fedtailor.reporting import dataset_page
    from fedtailor.storage.atomic import explain_disk_errors

    options = _parse_options(args or [])
    dataset = dataset_page.load(name, **options)
    labels = dataset_page.compute_label_table(dataset)
    console = TerminalConsole()
    summary = f"{dataset.name}: {dataset_page.make_summary(dataset, labels)}"
    for sentence in (summary, *dataset_page.list_notes(dataset, labels)):
        console.print(sentence, highlight=False)
    console.print(_build_grid(dataset_page.describe_figures(labels)), highlight=False)
    is_ascii = _should_use_ascii(console)
    for line in dataset_page.draw_labels(labels, console.width, is_ascii, max_clients):
        console.print(line, highlight=False)
    if html is not None:
        with explain_disk_errors(html, "fix that, or name another file."):
            dataset_page.write_page(dataset, options, html)
        console.print_line(f"page written to {format_path(html)}")


def _build_grid(rows: Iterable[tuple[str, str]]) -> Table:
    """Return the rows in two columns without headings, with an empty line below."""
    grid = Table.grid("", "", padding=(0, 2, 0, 0))
    for row in rows:
        grid.add_row(*row)
    grid.add_row()
    return grid


def _parse_options(args: Iterable[str]) -> dict[str, Any]:
    """Return KEY=VALUE arguments as options; `data.KEY=VALUE`, as for a run, is the same."""
    from fedtailor.training.overrides import parse_value

    options: dict[str, Any] = {}
    for arg in args:
        key, equals, text = arg.partition("=")
        require(bool(equals), f"'{arg}' is not KEY=VALUE.")
        name = key.removeprefix("data.")
        require(name not in options, f"data show: {name} is named twice; leave one out.")
        options[name] = parse_value(text)
    return options


def _should_use_ascii(console: TerminalConsole) -> bool:
    """Return whether output goes to a file or pipe, or its encoding lacks block characters."""
    encoding = getattr(sys.stdout, "encoding", None) or ""
    return not console.is_terminal or "utf" not in encoding.lower()
