"""The command that runs studies, and lists and publishes them: study."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, cast

import typer
from rich.table import Table

from fedtailor.cli.listing import build_table as build_list
from fedtailor.cli.progress import (
    EXIT_STOPPED,
    CommandArgs,
    StudyProgressReporter,
    TrustRunsFlag,
    parse_command_args,
    reserve_out,
    trust_runs,
)
from fedtailor.cli.terminal import TerminalConsole, format_path, print_text
from fedtailor.errors import require, suggest_name

if TYPE_CHECKING:
    from fedtailor.studies.execute import PartRun, PreparedStudy
    from fedtailor.studies.plan import Scale, StudyRequest
    from fedtailor.studies.tables import TextTable

TABLE_WIDTH = 130
"""Columns of a table where there is no terminal."""


def study(
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME] [KEY=VALUE]...", show_default=False)
    ] = None,
    trust_code: TrustRunsFlag = False,
) -> None:
    """Run a study: comparisons that answer a question of a paper, next to its published figures.

    Without a name, list the studies. `scale=quick`, the default, takes minutes, and uses embedded
    data in place of data sets that have not been added; `scale=paper` is the real thing.
    `parts=a,b` runs some of the parts, `jobs=N` uses N processes, `max_seconds=S` stops after
    S seconds. Other keys are those of `fedtailor compare`: device=cuda, rounds=5, METHOD.lr=0.1. To
    resume what was stopped, repeat the command with the same `out`.

    Tables are written to OUT/PART.md, figures to OUT/figures, records to OUT/PART.json.
    `write=true` copies records of scale=paper to the study in a checkout, and updates the tables in
    its documents.

    Examples:

        fedtailor study

        fedtailor study per_fedavg jobs=2 out=DIR

        fedtailor study per_fedavg scale=paper device=cuda jobs=12 max_seconds=500 out=DIR

        fedtailor study per_fedavg out=DIR write=true
    """
    if not args:
        _list_studies()
        return
    command_args = _parse_study_args(args)
    if trust_code:
        trust_runs(command_args.out)
    if command_args.options.get("write") == "true":
        _write_records(command_args)
    else:
        _run_study(command_args)


COMMANDS = (study,)
NEED_ARGS = ()


_STUDY_KEYS = ("scale", "parts", "jobs", "max_seconds", "out", "write")


def _parse_study_args(args: list[str]) -> CommandArgs:
    """Return the arguments, checked as far as that can be done before the study is read."""
    name, *overrides = args
    require(
        "=" not in name,
        f"study: the first argument must be a study's name, got '{name}'; "
        "`fedtailor study` lists them.",
    )
    for override in overrides:
        require("=" in override, f"study: '{override}' is not KEY=VALUE.")
    command_args = parse_command_args("study", args, _STUDY_KEYS)
    write = command_args.options.get("write", "false")
    require(write in ("true", "false"), f"study: write must be true or false, got {write}.")
    return command_args


class _StudyRow(NamedTuple):
    """A line of the list of studies, about a study or one of its parts."""

    study: str
    parts: str
    records: str
    about: str


def _list_studies() -> None:
    """Print the studies and their parts, with the number of parts that have a record."""
    from fedtailor.studies.config import read_study
    from fedtailor.studies.locate import find_studies

    studies = [read_study(folder) for folder in find_studies().values()]
    require(bool(studies), "There are no studies here; change to a folder that has a studies/.")
    rows: list[_StudyRow] = []
    for listed_study in studies:
        parts = listed_study.parts
        num_records = sum(listed_study.get_record_path(part).exists() for part in parts)
        rows.append(
            _StudyRow(listed_study.name, str(len(parts)), str(num_records), listed_study.title)
        )
        rows += [_StudyRow(f"  {part.name}", "", "", part.title) for part in parts]
    TerminalConsole().print(build_list(_StudyRow._fields, rows), highlight=False)


def _write_records(command_args: CommandArgs) -> None:
    """Copy records to the study, or without `out` only update its documents."""
    from fedtailor.studies.locate import load_study
    from fedtailor.studies.publish import copy_records, list_documents, update_document

    loaded_study = load_study(command_args.rest[0])
    if command_args.out is None:
        update_document(loaded_study)
        for path in list_documents(loaded_study):
            print_text(f"Tables: {format_path(path)}")
        return
    for path in copy_records(loaded_study, command_args.out):
        print_text(f"Record: {format_path(path)}")


def _run_study(command_args: CommandArgs) -> None:
    from fedtailor.studies.execute import prepare_study, run_study
    from fedtailor.studies.plan import plan_study

    request = _make_request(command_args)
    jobs = command_args.jobs
    deadline = None
    max_seconds = command_args.get_number("max_seconds", float)
    if max_seconds is not None:
        deadline = time.monotonic() + max_seconds
    part_names = [name for name in command_args.options.get("parts", "").split(",") if name]
    planned_parts, skipped = plan_study(request, part_names)
    console = TerminalConsole()
    with (
        reserve_out(command_args.out, request.study.name) as out,
        StudyProgressReporter(console, deadline) as reporter,
    ):
        for message in (*(planned.note for planned in planned_parts), *skipped):
            reporter.print_message(message)
        require(bool(planned_parts), f"study {request.study.name}: no part can be run.")
        prepared = prepare_study(request, planned_parts, out)
        reporter.print_message(_describe_plan(prepared, jobs))
        reporter.set_totals(prepared)
        part_runs = run_study(prepared, jobs, reporter.on_event, reporter.should_stop)
    _print_results(console, request, part_runs, out)
    if not all(part_run.is_finished for part_run in part_runs):
        console.print_line(f"Stopped and saved. Resume with: {command_args.format_command(out)}")
        raise typer.Exit(EXIT_STOPPED)


def _make_request(command_args: CommandArgs) -> "StudyRequest":
    from fedtailor.studies.locate import load_study
    from fedtailor.studies.plan import SCALES, StudyRequest

    scale = command_args.options.get("scale", "quick")
    require(scale in SCALES, f"study: there is no scale '{scale}'; {suggest_name(scale, SCALES)}")
    name, *overrides = command_args.rest
    return StudyRequest(load_study(name), cast("Scale", scale), tuple(overrides))


def _describe_plan(prepared: "PreparedStudy", jobs: int) -> str:
    """Return what will be run, and how long that takes if it is known, in a sentence."""
    request = prepared.request
    round_counts = sorted(set(prepared.rounds_per_run))
    rounds = f"{round_counts[0]} rounds"
    if len(round_counts) > 1:
        rounds = f"{round_counts[0]} to {round_counts[-1]} rounds"
    names = ", ".join(planned.part.name for planned in prepared.planned_parts)
    text = (
        f"{request.study.name}, scale={request.scale}: {len(prepared.rounds_per_run)} runs of "
        f"{rounds} ({names}), {jobs} at a time"
    )
    duration = _describe_duration(prepared) if request.scale == "paper" else ""
    return f"{text}; {duration}." if duration else f"{text}."


def _describe_duration(prepared: "PreparedStudy") -> str:
    """Return how long the parts take on a GPU; "" if that is known of none."""
    parts = [planned.part for planned in prepared.planned_parts]
    timed_parts = [part for part in parts if part.minutes is not None]
    if not timed_parts:
        return ""
    minutes = sum(part.minutes or 0.0 for part in timed_parts)
    source = "measured" if all(part.is_measured for part in timed_parts) else "estimated"
    text = f"about {minutes:.0f} minutes of an H200 shared by several jobs ({source})"
    if len(timed_parts) < len(parts):
        text += f" for {len(timed_parts)} of {len(parts)} parts"
    return text


def _print_results(
    console: TerminalConsole, request: "StudyRequest", part_runs: "Sequence[PartRun]", out: Path
) -> None:
    """Write the records, tables and figures of finished parts, and print the tables.

    Args:
        console: Where to print.
        request: What was run.
        part_runs: The parts, finished or not.
        out: The folder of the runs.
    """
    from fedtailor.studies.client_scores import read_client_scores
    from fedtailor.studies.publish import write_part
    from fedtailor.studies.tables import build_tables, describe_equal_parts, make_title

    table_console = console
    if not console.is_terminal:
        table_console = TerminalConsole(width=max(TABLE_WIDTH, console.width))
    records = []
    for part_run in part_runs:
        if not part_run.is_finished:
            continue
        part = part_run.planned.part
        record = write_part(request, part_run, out)
        records.append(record)
        scores = read_client_scores(out, record.client_scores)
        for text_table in build_tables(record, part, scores).values():
            table = _build_table(make_title(record, part), text_table)
            table_console.print(table, highlight=False)
            for note in text_table.notes:
                table_console.print(note, highlight=False)
        record_path = format_path(out / f"{part.name}.json")
        tables_path = format_path(out / f"{part.name}.md")
        figures_path = format_path(out / "figures")
        console.print_line(f"Record: {record_path}, tables: {tables_path}, figures: {figures_path}")
        if record.client_scores is not None:
            scores_path = format_path(out / record.client_scores.name)
            kilobytes = record.client_scores.num_bytes / 1000
            console.print_line(f"Scores of all clients: {scores_path} ({kilobytes:,.1f} kB)")
    for sentence in describe_equal_parts(records):
        console.print_line(sentence)


def _build_table(title: str, text_table: "TextTable") -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    first_heading, *headings = text_table.header
    table.add_column(first_heading, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in text_table.rows:
        table.add_row(*row)
    return table
