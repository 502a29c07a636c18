"""Commands that add data sets to the data folder and remove them from it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

from fedtailor.cli.terminal import PrintableColumn, TerminalConsole, print_text


def add(
    name: Annotated[
        str,
        typer.Argument(help="A data set that `fedtailor data` lists, or a new name for your own."),
    ],
    source: Annotated[
        Path | None,
        typer.Option("--from", help="A local file, folder or archive, instead of a download."),
    ] = None,
    x: Annotated[
        str | None,
        typer.Option("--x", help="Own data: column of inputs (x), or several with commas."),
    ] = None,
    y: Annotated[str | None, typer.Option("--y", help="Own data: column of targets (y).")] = None,
    client: Annotated[
        str | None, typer.Option("--client", help="Own data: column of client ids (client).")
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option("--classes", min=1, help="Own data: number of classes (counted by default)."),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option("--scale", help="Own data: factor that integer inputs are multiplied by."),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Put it in the place of the one of this name, which stays until this is complete.",
        ),
    ] = False,
) -> None:
    """Add a data set to the data folder (FEDTAILOR_DATA): download it, or read local files.

    Data sets that have been added open at once.

    Examples:

        fedtailor data add mnist

        fedtailor data add cifar10 --from cifar-10-python.tar.gz

        fedtailor data add mine --from mine.parquet --x age,income --y bought --client person
    """
    from fedtailor.cli.manage_data import OwnDataOptions, add_dataset

    console = TerminalConsole(stderr=True)
    with Progress(
        SpinnerColumn(),
        PrintableColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(f"{name}: reading")

        def show_rows(num_rows: int, num_bytes: int) -> None:
            text = f"{name}: {num_rows:,} examples, {num_bytes / 1e6:,.0f} MB"
            progress.update(task, description=text)

        def show_download(file: str, num_bytes: int, total_bytes: int) -> None:
            # The total is 0 if the server does not say how large the file is.
            total = f" of {total_bytes / 1e6:,.0f}" if total_bytes > 0 else ""
            text = f"{name}: {file}, {num_bytes / 1e6:,.0f}{total} MB downloaded"
            progress.update(task, description=text)

        options = OwnDataOptions(x, y, client, classes, scale)
        message = add_dataset(name, source, options, show_rows, show_download, replace)
    print_text(message)


def remove(name: Annotated[str, typer.Argument(help="A data set that has been added.")]) -> None:
    """Remove a data set that has been added, and files derived from it; downloads are kept.

    Examples:

        fedtailor data remove mnist
    """
    from fedtailor.cli.manage_data import remove_dataset

    print_text(remove_dataset(name))


COMMANDS = (add, remove)
