"""Commands that show methods and finished work: methods, report."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtailor.cli.listing import JsonFlag, build_table, print_json
from fedtailor.cli.terminal import TerminalConsole, format_path, print_text

if TYPE_CHECKING:
    from fedtailor.cli.catalog import MethodEntry, WrapperEntry


def methods(
    name: Annotated[
        str | None, typer.Argument(help="A method, to see its equations and hyper-parameters.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List methods with what they need and cost, or show the equations and options of one.

    Examples:

        fedtailor methods

        fedtailor methods fedsim

        fedtailor methods fsl+fedsim

        fedtailor methods --json
    """
    from fedtailor.cli.catalog import describe_method, list_methods, list_wrappers

    if as_json:
        print_json(list_methods() if name is None else [describe_method(name)])
        return
    if name is None:
        lines = [*_format_methods(list_methods()), "", *_format_wrappers(list_wrappers())]
        print_text("\n".join(lines))
        return
    entry = describe_method(name)
    print_text("\n".join([entry.description, "", *_format_costs(entry), ""]))
    rows = [
        (hparam.name, hparam.default, hparam.allowed, hparam.meaning) for hparam in entry.hparams
    ]
    table = build_table(("hyper-parameter", "default", "allowed", "meaning"), rows)
    TerminalConsole(width=WIDTH).print(table, highlight=False)


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="OUT...", help="Folders of runs or comparisons.")
    ],
    to: Annotated[
        Path | None,
        typer.Option(help="The file to write; by default report.html in the first folder."),
    ] = None,
) -> None:
    """Write one HTML report of one or several runs, which need not have finished.

    Examples:

        fedtailor report DIR

        fedtailor report DIR1 DIR2 DIR3 --to all.html
    """
    from fedtailor.reporting.html import write_report
    from fedtailor.storage.atomic import explain_disk_errors
    from fedtailor.training.run_dir import find_runs

    run_dirs = [run_dir for folder in folders for run_dir in find_runs(folder)]
    records = [run_dir.read_record() for run_dir in run_dirs]
    path = to or folders[0] / "report.html"
    with explain_disk_errors(path, "an earlier report there is intact."):
        write_report(records, path)
    print_text(f"Report: {format_path(path)}")


COMMANDS = (methods, report)
NEED_ARGS = (report,)


WIDTH = 100
"""Columns of the output, whatever the width of the terminal: its longer lines wrap legibly."""

_LEGEND = (
    "bytes: sent down and up in a round; gradients: floating-point operations of a local step, for "
    "methods with several phases of one step of each; both measured with default hyper-parameters "
    "on an mlp with 20 inputs, 16 hidden units and 4 classes, on batches of one size, and divided "
    "by FedAvg's. Steps at the server are not counted. secure: whether the server needs nothing "
    "but averages, so that the method could run under secure aggregation."
)


def _format_methods(entries: "Iterable[MethodEntry]") -> Iterator[str]:
    """Yield two or three lines for each method under a heading, and a legend of the columns."""
    yield f"{'method':12}{'bytes':>7}{'gradients':>11}{'secure':>8}  needs"
    for entry in entries:
        gradients = "-" if entry.gradients is None else entry.gradients
        figures = f"{entry.bytes:>7}{gradients:>11}{_format_secure(entry):>8}"
        yield f"{entry.method:12}{figures}  {entry.needs}"
        yield from _format_title(entry)
    yield ""
    yield textwrap.fill(_LEGEND, WIDTH)


def _format_title(entry: "MethodEntry") -> Iterator[str]:
    """Yield the summary and the paper of a method, on one line if it has room for both."""
    indent = "  "
    paper = f"({entry.paper})" if entry.paper else ""
    title = f"{indent}{entry.summary} {paper}".rstrip()
    if len(title) <= WIDTH:
        yield title
        return
    yield f"{indent}{entry.summary}"
    if paper:
        yield f"{indent}{paper}"


def _format_wrappers(wrappers: "Sequence[WrapperEntry]") -> Iterator[str]:
    """Yield lines on the wrappers that can go around a method."""
    yield "Wrappers go around another method and are written before its name with a plus:"
    for wrapper in wrappers:
        text = f"{wrapper.name:7}{wrapper.summary}"
        yield textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent=" " * 9)
    first = wrappers[0].name
    last = wrappers[-1].name
    yield f"for example {first}+fedsim, or {first}+{last}+fedmeta."


def _format_costs(entry: "MethodEntry") -> Iterator[str]:
    """Yield what a method needs and costs, a line for each column of the list of methods."""
    yield f"needs      {entry.needs}"
    yield f"bytes      {entry.bytes} times FedAvg's"
    gradients = "none: clients do not train in rounds"
    if entry.gradients is not None:
        gradients = f"{entry.gradients} times FedAvg's floating-point operations a local step"
    yield f"gradients  {gradients}"
    secure = _format_secure(entry)
    if entry.secure_aggregation_obstacle:
        secure += f": {entry.secure_aggregation_obstacle}"
    yield f"secure     {secure}"


def _format_secure(entry: "MethodEntry") -> str:
    return "no" if entry.secure_aggregation_obstacle else "yes"
