"""Commands that put data sets on this machine, and take them away again."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


def add(
    name: Annotated[
        str,
        typer.Argument(help="A data set that `fedtailor data` lists, or a new name for your own."),
    ],
    source: Annotated[
        Path | None,
        typer.Option("--from", help="A file, folder or archive at hand, instead of a download."),
    ] = None,
    x: Annotated[
        str | None,
        typer.Option("--x", help="Own data: the column of inputs (x); several with commas."),
    ] = None,
    y: Annotated[
        str | None, typer.Option("--y", help="Own data: the column of targets (y).")
    ] = None,
    client: Annotated[
        str | None, typer.Option("--client", help="Own data: whose each row is (client).")
    ] = None,
    classes: Annotated[
        int | None, typer.Option("--classes", min=1, help="Own data: how many classes (counted).")
    ] = None,
    scale: Annotated[
        float | None, typer.Option("--scale", help="Own data: what integers are multiplied by.")
    ] = None,
) -> None:
    """Puts a data set where data lies (FEDTAILOR_DATA): downloads it, or reads what is at hand; then it opens at once.

    Examples:

        fedtailor data add mnist

        fedtailor data add cifar10 --from cifar-10-python.tar.gz

        fedtailor data add mine --from mine.parquet --x age,income --y bought --client person
    """
    from fedtailor.cli.manage_data import add_dataset

    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(f"{name}: reading")

        def tell(rows: int, size: int) -> None:
            progress.update(task, description=f"{name}: {rows:,} examples, {size / 1e6:,.0f} MB")

        def told(file: str, have: int, total: int) -> None:
            of = f" of {total / 1e6:,.0f}" if total > 0 else ""
            progress.update(
                task, description=f"{name}: {file}, {have / 1e6:,.0f}{of} MB downloaded"
            )

        read_options = {"x": x, "y": y, "client": client, "classes": classes, "scale": scale}
        message = add_dataset(name, source, tell, told, **read_options)
    print(message)


def remove(name: Annotated[str, typer.Argument(help="A data set that has been added.")]) -> None:
    """Removes a data set that has been added, and what was worked out of it; downloads stay.

    Examples:

        fedtailor data remove mnist
    """
    from fedtailor.cli.manage_data import remove_dataset

    print(remove_dataset(name))


COMMANDS = (add, remove)
