"""Commands that show: methods, data, report."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def methods(
    name: Annotated[str | None, typer.Argument(help="A method, to see its equations and hyper-parameters.")] = None,
    as_json: Json = False,
) -> None:
    """Lists the methods, or shows one: its equations, hyper-parameters with defaults, and identities.

    Examples:

        fedtailor methods

        fedtailor methods fedsim

        fedtailor methods --json
    """
    from fedtailor.run.catalogue import method_entry, method_list

    if as_json:
        print(json.dumps([method_entry(name)] if name else method_list(), indent=1))
    elif name:
        entry = method_entry(name)
        print(entry["description"])
        Console().print(_table(entry["hyper"], "hyper-parameter", "default", "meaning"))
    else:
        Console().print(_table(method_list(), "method", "needs", "summary"))


def data(
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
        Console().print(_table(entry["options"], "option", "default"))
    else:
        Console().print(_table(data_list(), "data", "summary"))


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="OUT...", help="Folders of runs or comparisons.")],
    to: Annotated[Path | None, typer.Option(help="Where to write it; in the first folder if not given.")] = None,
) -> None:
    """Writes one HTML report of one or several runs, also of runs that are still going on.

    Examples:

        fedtailor report DIR

        fedtailor report DIR1 DIR2 DIR3 --to all.html
    """
    from fedtailor.run.compare import runs_in
    from fedtailor.run.files import disk_trouble
    from fedtailor.run.record import Folder
    from fedtailor.run.report import write

    records = [Folder(run).record() for folder in folders for run in runs_in(folder)]
    place = to or folders[0] / "report.html"
    with disk_trouble(place, "the report that was there before is whole."):
        write(records, place)
    print(f"Report: {place}")


COMMANDS = (methods, data, report)
NEED_WORDS = (report,)


def _table(rows: list[dict[str, Any]], *columns: str) -> Table:
    made = Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        made.add_row(*(str(row[column]) for column in columns))
    return made
