"""Commands that show: methods, report."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedtailor.cli.listing import JsonFlag, build_table


def methods(
    name: Annotated[
        str | None, typer.Argument(help="A method, to see its equations and hyper-parameters.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Lists the methods with what they need and cost, or shows one: its equations, identities and hyper-parameters.

    Examples:

        fedtailor methods

        fedtailor methods fedsim

        fedtailor methods fsl+fedsim

        fedtailor methods --json
    """
    from fedtailor.cli.catalog import describe_method, list_methods, list_wrappers

    if as_json:
        print(json.dumps([describe_method(name)] if name else list_methods(), indent=1))
    elif name:
        entry = describe_method(name)
        print("\n".join([entry["description"], "", *_format_costs(entry), ""]))
        Console(width=WIDTH).print(
            build_table(entry["hparams"], "hyper-parameter", "default", "meaning"), highlight=False
        )
    else:
        print("\n".join([*_format_methods(list_methods()), "", *_format_wrappers(list_wrappers())]))


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="OUT...", help="Folders of runs or comparisons.")
    ],
    to: Annotated[
        Path | None, typer.Option(help="Where to write it; in the first folder if not given.")
    ] = None,
) -> None:
    """Writes one HTML report of one or several runs, also of runs that are still going on.

    Examples:

        fedtailor report DIR

        fedtailor report DIR1 DIR2 DIR3 --to all.html
    """
    from fedtailor.experiments.compare import find_runs
    from fedtailor.reporting.html import write_report
    from fedtailor.storage.atomic import explain_disk_errors
    from fedtailor.training.run_dir import RunDir

    records = [RunDir(run).read_record() for folder in folders for run in find_runs(folder)]
    path = to or folders[0] / "report.html"
    with explain_disk_errors(path, "the report that was there before is whole."):
        write_report(records, path)
    print(f"Report: {path}")


COMMANDS = (methods, report)
NEED_ARGS = (report,)


WIDTH = 100
"""Columns of what is printed, whatever the terminal's are: lines that are too long for it still read well."""

_LEGEND = (
    "bytes: sent down and up in a round; gradients: floating-point operations of a local step, for methods with "
    "several phases of one step of each; both measured with default hyper-parameters on an mlp with 20 inputs, 16 "
    "hidden units and 4 classes, on batches of one size, and divided by FedAvg's. Steps at the server are not counted. "
    "secure: whether the server needs no more than averages, so that it could run under secure aggregation."
)


def _format_methods(entries: list[dict[str, Any]]) -> Iterator[str]:
    """Two lines for each method, under a heading, and what the columns mean."""
    yield f"{'method':12}{'bytes':>7}{'gradients':>11}{'secure':>8}  needs"
    for entry in entries:
        gradients = "-" if entry["gradients"] is None else entry["gradients"]
        figures = f"{entry['bytes']:>7}{gradients:>11}{_format_secure(entry):>8}"
        yield f"{entry['method']:12}{figures}  {entry['needs']}"
        paper = f"({entry['paper']})" if entry["paper"] else ""
        together = f"{entry['summary']} {paper}".rstrip()
        yield from (
            f"  {line}"
            for line in ([together] if len(together) <= WIDTH - 2 else [entry["summary"], paper])
        )
    yield ""
    yield textwrap.fill(_LEGEND, WIDTH)


def _format_wrappers(wrappers: list[dict[str, str]]) -> Iterator[str]:
    """The words that can be put before a method's name."""
    yield "Before another method's name, with a plus, can stand:"
    for wrapper in wrappers:
        about = f"{wrapper['name']:7}{wrapper['summary']}"
        yield textwrap.fill(about, WIDTH, initial_indent="  ", subsequent_indent=" " * 9)
    yield f"for example {wrappers[0]['name']}+fedsim, or {wrappers[0]['name']}+{wrappers[-1]['name']}+fedmeta."


def _format_costs(entry: dict[str, Any]) -> Iterator[str]:
    """What a method needs and costs, in words."""
    yield f"needs      {entry['needs']}"
    yield f"bytes      {entry['bytes']} times FedAvg's"
    work = "none: clients do not train in rounds"
    if entry["gradients"] is not None:
        work = f"{entry['gradients']} times FedAvg's floating-point operations a local step"
    yield f"gradients  {work}"
    yield f"secure     {_format_secure(entry)}{': ' if entry['not_averaged'] else ''}{entry['not_averaged']}"


def _format_secure(entry: dict[str, Any]) -> str:
    return "no" if entry["not_averaged"] else "yes"
