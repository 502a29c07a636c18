"""The command that runs studies."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedtailor.cli.listing import build_table as list_rows
from fedtailor.cli.progress import (
    CommandArgs,
    StudyProgressReporter,
    choose_run_path,
    parse_command_args,
)
from fedtailor.errors import require, suggest_name

if TYPE_CHECKING:
    from fedtailor.studies.execute import PartRun, PreparedStudy
    from fedtailor.studies.plan import StudyRequest
    from fedtailor.studies.tables import TextTable

TABLE_WIDTH = 130
"""Columns of a table where there is no terminal."""


def study(
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME] [KEY=VALUE]...", show_default=False)
    ] = None,
) -> None:
    """Runs a study: comparisons that answer a question of a paper, with its published figures beside ours.

    Without a name it lists the studies. `scale=quick`, the default, takes minutes and, where a data set has not been
    added, embedded data; `scale=paper` is the real thing. `parts=a,b` are some of its parts, `jobs=N` runs N processes
    beside each other, `budget_s=S` stops after S seconds. Any other key is of the comparisons, as for `fedtailor
    compare`: device=cuda, rounds=5, METHOD.lr=0.1. The same command with the same `out` goes on where it was stopped.

    Tables end up in OUT/PART.md, figures in OUT/figures, records in OUT/PART.json. `write=true` copies records of
    scale=paper to the study in a checkout and brings the tables of its documents up to date.

    Examples:

        fedtailor study

        fedtailor study per_fedavg jobs=2 out=DIR

        fedtailor study per_fedavg scale=paper device=cuda jobs=12 budget_s=500 out=DIR

        fedtailor study per_fedavg out=DIR write=true
    """
    if not args:
        _list_studies()
        return
    command_args = _parse_study_args(args)
    if command_args.options.get("write") == "true":
        _write_records(command_args)
        return
    _run_study(command_args)


COMMANDS = (study,)
NEED_ARGS = ()


_STUDY_KEYS = ("scale", "parts", "jobs", "budget_s", "out", "write")


def _parse_study_args(given: list[str]) -> CommandArgs:
    """The words, checked as far as that can be done before the study is read."""
    name, *rest = given
    require(
        "=" not in name,
        f"study: the first word is a study's name, got '{name}'; `fedtailor study` lists them.",
    )
    for arg in rest:
        require("=" in arg, f"study: '{arg}' is not KEY=VALUE.")
    command_args = parse_command_args("study", given, _STUDY_KEYS)
    write = command_args.options.get("write", "false")
    require(write in ("true", "false"), f"study: write must be true or false, got {write}.")
    return command_args


def _list_studies() -> None:
    """The studies: what each is about, its parts, and of how many there is a record."""
    from fedtailor.studies.config import read_study
    from fedtailor.studies.locate import find_studies

    studies = [read_study(folder) for folder in find_studies().values()]
    require(bool(studies), "There are no studies here; go to a folder that has them in studies/.")
    rows: list[dict[str, Any]] = []
    for each in studies:
        num_records = sum(each.get_record_path(part).exists() for part in each.parts)
        rows.append(
            {
                "study": each.name,
                "parts": len(each.parts),
                "records": num_records,
                "about": each.title,
            }
        )
        rows += [
            {"study": f"  {part.name}", "parts": "", "records": "", "about": part.title}
            for part in each.parts
        ]
    Console().print(list_rows(rows, "study", "parts", "records", "about"), highlight=False)


def _write_records(command_args: CommandArgs) -> None:
    from fedtailor.studies.locate import load_study
    from fedtailor.studies.publish import copy_records, documents, update_document

    the_study = load_study(command_args.rest[0])
    if command_args.out is None:
        update_document(the_study)
        for path in documents(the_study):
            print(f"Tables: {path}")
        return
    for path in copy_records(the_study, command_args.out):
        print(f"Record: {path}")


def _run_study(command_args: CommandArgs) -> None:
    from fedtailor.studies.execute import prepare_study, run_study
    from fedtailor.studies.locate import load_study
    from fedtailor.studies.plan import SCALES, StudyRequest, plan_study

    scale = command_args.options.get("scale", "quick")
    require(scale in SCALES, f"study: there is no scale '{scale}'; {suggest_name(scale, SCALES)}")
    name, *rest = command_args.rest
    request = StudyRequest(
        load_study(name), next(each for each in SCALES if each == scale), tuple(rest)
    )
    jobs, budget = command_args.jobs, command_args.get_number("budget_s", float)
    deadline = None if budget is None else time.monotonic() + budget
    planned_parts, skipped = plan_study(
        request, tuple(filter(None, command_args.options.get("parts", "").split(",")))
    )
    out = command_args.out or choose_run_path(name)
    console = Console()
    with StudyProgressReporter(console, deadline) as reporter:
        for line in [*(each.note for each in planned_parts), *skipped]:
            reporter.print_message(line)
        require(bool(planned_parts), f"study {name}: no part can be run.")
        prepared = prepare_study(request, planned_parts, out)
        reporter.print_message(_describe_plan(prepared, jobs))
        reporter.set_totals(prepared)
        part_runs = run_study(prepared, jobs, reporter.on_event, reporter.should_stop)
    _print_results(console, request, part_runs, out, command_args)


def _describe_plan(prepared: "PreparedStudy", jobs: int) -> str:
    """What will be done, in a line."""
    request, rounds = prepared.request, sorted({*prepared.rounds_per_run})
    each = f"{rounds[0]} rounds" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]} rounds"
    names = ", ".join(planned.part.name for planned in prepared.planned_parts)
    num_runs = len(prepared.rounds_per_run)
    text = f"{request.study.name}, scale={request.scale}: {num_runs} runs of {each} ({names}), {jobs} at a time"
    timed_parts = [
        planned.part for planned in prepared.planned_parts if planned.part.minutes is not None
    ]
    if request.scale == "quick" or not timed_parts:
        return f"{text}."
    minutes = sum(part.minutes or 0.0 for part in timed_parts)
    how = "measured" if all(part.measured for part in timed_parts) else "estimated"
    more = (
        ""
        if len(timed_parts) == len(prepared.planned_parts)
        else f" for {len(timed_parts)} of {len(prepared.planned_parts)} parts"
    )
    return (
        f"{text}; about {minutes:.0f} minutes of an H200 that several jobs keep busy ({how}){more}."
    )


def _print_results(
    console: Console,
    request: "StudyRequest",
    part_runs: "list[PartRun]",
    out: Path,
    command_args: CommandArgs,
) -> None:
    """Tables and files of what has finished, and how to go on where something has not."""
    from fedtailor.studies.publish import write_part
    from fedtailor.studies.tables import build_tables, make_title

    wide = console if console.is_terminal else Console(width=max(TABLE_WIDTH, console.width))
    for each in (each for each in part_runs if each.is_finished):
        part, record = each.planned.part, write_part(request, each, out)
        for rows in build_tables(record, part).values():
            wide.print(_build_table(make_title(record, part), rows), highlight=False)
        where = f"Record: {out / part.name}.json, tables: {out / part.name}.md, figures: {out / 'figures'}"
        console.print(where, highlight=False, soft_wrap=True)
    if not all(each.is_finished for each in part_runs):
        console.print(
            f"Stopped and saved. Go on with: {command_args.format_command(out)}",
            highlight=False,
            soft_wrap=True,
            markup=False,
        )
        raise typer.Exit(130)


def _build_table(title: str, text_table: "TextTable") -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column(text_table.header[0], no_wrap=True)
    for heading in text_table.header[1:]:
        table.add_column(heading, justify="right")
    for row in text_table.rows:
        table.add_row(*row)
    return table
