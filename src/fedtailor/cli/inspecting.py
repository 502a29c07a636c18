"""The command that looks at the server's data before any long run."""

import json
from typing import Annotated

import typer
from rich.console import Console

from fedtailor.cli.tables import Json


def inspect(
    words: Annotated[list[str] | None, typer.Argument(metavar="[FILE.toml] [KEY=VALUE]...", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Says whether the server's data will help, from short trials that validation clients judge.

    Keys are those of `fedtailor run`: data, its options, model, cohort, and hyper-parameters of local training (lr,
    batch, epochs, ...). The mlp and the linear model see centred inputs here. Nothing is written.

    Examples:

        fedtailor inspect data=digits

        fedtailor inspect data=mnist data.server_from=rendered data.server=150

        fedtailor inspect data=digits data.server=0.02 --json
    """
    from fedtailor.run.inspecting import inspect as look
    from fedtailor.run.inspecting_words import bars, plain, reasons, verdict
    from fedtailor.run.spec import read_spec

    given = words or []
    named = any(word.startswith("method=") or word.endswith(".toml") for word in given)
    spec, console = read_spec([*given, *([] if named else ["method=fedavg"])]), Console()
    with Console(stderr=True).status("") as status:
        found = look(spec, status.update)
    if as_json:
        print(json.dumps(plain(found), indent=1, allow_nan=False))
        return
    console.print(f"{found.name}: {found.examples:,} examples at the server", markup=False, highlight=False)
    for line in (*reasons(found), "", *bars(found), "", verdict(found)):
        console.print(line, markup=False, highlight=False)


COMMANDS = (inspect,)
NEED_WORDS = ()
