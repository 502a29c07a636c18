"""Commands that show: methods, report."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedtailor.cli.tables import Json, table


def methods(
    name: Annotated[str | None, typer.Argument(help="A method, to see its equations and hyper-parameters.")] = None,
    as_json: Json = False,
) -> None:
    """Lists the methods with what they need and cost, or shows one: its equations, identities and hyper-parameters.

    Examples:

        fedtailor methods

        fedtailor methods fedsim

        fedtailor methods fsl+fedsim

        fedtailor methods --json
    """
    from fedtailor.run.catalogue import method_entry, method_list, wrapper_list

    if as_json:
        print(json.dumps([method_entry(name)] if name else method_list(), indent=1))
    elif name:
        entry = method_entry(name)
        print("\n".join([entry["description"], "", *_costs(entry), ""]))
        Console(width=WIDTH).print(table(entry["hyper"], "hyper-parameter", "default", "meaning"), highlight=False)
    else:
        print("\n".join([*_listing(method_list()), "", *_around(wrapper_list())]))


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="OUT...", help="Folders of runs or comparisons.")],
    to: Annotated[Path | None, typer.Option(help="Where to write it; in the first folder if not given.")] = None,
) -> None:
    """Writes one HTML report of one or several runs, also of runs that are still going on.

    Examples:

        fedtailor report DIR

        fedtailor report DIR1 DIR2 DIR3 --to all.html
    """
    from fedtailor.disk import disk_trouble
    from fedtailor.run.compare import runs_in
    from fedtailor.run.record import Folder
    from fedtailor.run.report import write

    records = [Folder(run).record() for folder in folders for run in runs_in(folder)]
    place = to or folders[0] / "report.html"
    with disk_trouble(place, "the report that was there before is whole."):
        write(records, place)
    print(f"Report: {place}")


COMMANDS = (methods, report)
NEED_WORDS = (report,)


WIDTH = 100
"""Columns of what is printed, whatever the terminal's are: lines that are too long for it still read well."""

_LEGEND = (
    "sends: bytes down and up in a round; gradients: floating-point operations of a local step, for methods with "
    "several phases of one step of each; both measured with default hyper-parameters on an mlp with 20 inputs, 16 "
    "hidden units and 4 classes, on batches of one size, and divided by FedAvg's. Steps at the server are not counted. "
    "secure: whether the server needs no more than averages, so that it could run under secure aggregation."
)


def _listing(entries: list[dict[str, Any]]) -> Iterator[str]:
    """Two lines for each method, under a heading, and what the columns mean."""
    yield f"{'method':12}{'sends':>7}{'gradients':>11}{'secure':>8}  needs"
    for entry in entries:
        figures = (
            f"{entry['sends']:>7}{'-' if entry['gradients'] is None else entry['gradients']:>11}{_secure(entry):>8}"
        )
        yield f"{entry['method']:12}{figures}  {entry['needs']}"
        paper = f"({entry['paper']})" if entry["paper"] else ""
        together = f"{entry['summary']} {paper}".rstrip()
        yield from (f"  {line}" for line in ([together] if len(together) <= WIDTH - 2 else [entry["summary"], paper]))
    yield ""
    yield textwrap.fill(_LEGEND, WIDTH)


def _around(words: list[dict[str, str]]) -> Iterator[str]:
    """The words that can be put before a method's name."""
    yield "Before another method's name, with a plus, can stand:"
    for word in words:
        about = f"{word['word']:7}{word['summary']}"
        yield textwrap.fill(about, WIDTH, initial_indent="  ", subsequent_indent=" " * 9)
    yield f"for example {words[0]['word']}+fedsim, or {words[0]['word']}+{words[-1]['word']}+fedmeta."


def _costs(entry: dict[str, Any]) -> Iterator[str]:
    """What a method needs and costs, in words."""
    yield f"needs      {entry['needs']}"
    yield f"sends      {entry['sends']} times what FedAvg does"
    work = "none: clients do not train in rounds"
    if entry["gradients"] is not None:
        work = f"{entry['gradients']} times FedAvg's floating-point operations a local step"
    yield f"gradients  {work}"
    yield f"secure     {_secure(entry)}{': ' if entry['not_averaged'] else ''}{entry['not_averaged']}"


def _secure(entry: dict[str, Any]) -> str:
    return "no" if entry["not_averaged"] else "yes"
