"""The command that runs studies."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedtailor.cli.tables import table as listing
from fedtailor.cli.telling import StudyTold, Words, next_folder, words_of
from fedtailor.errors import nearest, require

if TYPE_CHECKING:
    from fedtailor.run.study.planning import Asked
    from fedtailor.run.study.running import Ran, Ready
    from fedtailor.run.study.tables import Rows

WIDTH = 130
"""Columns of a table where there is no terminal."""


def study(
    words: Annotated[list[str] | None, typer.Argument(metavar="[NAME] [KEY=VALUE]...", show_default=False)] = None,
) -> None:
    """Runs a study: comparisons that answer a question of a paper, with its published figures beside ours.

    Without a name it lists the studies. `scale=quick`, the default, takes minutes and, where a data set has not been
    added, embedded data; `scale=paper` is the real thing. `parts=a,b` are some of its parts, `jobs=N` runs N processes
    beside each other, `budget_s=S` stops after so many seconds. Any other key is of the comparisons, as for `fedtailor
    compare`: device=cuda, rounds=5, METHOD.lr=0.1. The same command with the same `out` goes on where it was stopped.

    Tables end up in OUT/PART.md, figures in OUT/figures, records in OUT/PART.json. `write=true` copies records of
    scale=paper to the study in a checkout and brings the tables of its documents up to date.

    Examples:

        fedtailor study

        fedtailor study per_fedavg jobs=2 out=DIR

        fedtailor study per_fedavg scale=paper device=cuda jobs=12 budget_s=500 out=DIR

        fedtailor study per_fedavg out=DIR write=true
    """
    if not words:
        _list()
        return
    asked = _asked(words)
    if asked.own.get("write") == "true":
        _write(asked)
        return
    _run(asked)


COMMANDS = (study,)
NEED_WORDS = ()


_OWN = ("scale", "parts", "jobs", "budget_s", "out", "write")


def _asked(given: list[str]) -> Words:
    """The words, checked as far as that can be done before the study is read."""
    name, *rest = given
    require("=" not in name, f"study: the first word is a study's name, got '{name}'; `fedtailor study` lists them.")
    for word in rest:
        require("=" in word, f"study: '{word}' is not KEY=VALUE.")
    words = words_of("study", given, _OWN)
    write = words.own.get("write", "false")
    require(write in ("true", "false"), f"study: write must be true or false, got {write}.")
    return words


def _list() -> None:
    """The studies: what each is about, its parts, and of how many there is a record."""
    from fedtailor.run.study.places import found
    from fedtailor.run.study.reading import read_study

    studies = [read_study(folder) for folder in found().values()]
    require(bool(studies), "There are no studies here; go to a folder that has them in studies/.")
    rows: list[dict[str, Any]] = []
    for each in studies:
        there = sum(each.record_of(part).exists() for part in each.parts)
        rows.append({"study": each.name, "parts": len(each.parts), "records": there, "about": each.title})
        rows += [{"study": f"  {part.name}", "parts": "", "records": "", "about": part.title} for part in each.parts]
    Console().print(listing(rows, "study", "parts", "records", "about"), highlight=False)


def _write(words: Words) -> None:
    from fedtailor.run.study.places import study_named
    from fedtailor.run.study.written import documents, keep, refresh

    found = study_named(words.rest[0])
    if words.out is None:
        refresh(found)
        for path in documents(found):
            print(f"Tables: {path}")
        return
    for path in keep(found, words.out):
        print(f"Record: {path}")


def _run(words: Words) -> None:
    from fedtailor.run.study.places import study_named
    from fedtailor.run.study.planning import SCALES, Asked, plan
    from fedtailor.run.study.running import prepare, run

    scale = words.own.get("scale", "quick")
    require(scale in SCALES, f"study: there is no scale '{scale}'; {nearest(scale, SCALES)}")
    name, *rest = words.rest
    asked = Asked(study_named(name), next(each for each in SCALES if each == scale), tuple(rest))
    jobs, budget = words.jobs, words.number("budget_s", float)
    until = None if budget is None else time.monotonic() + budget
    planned, left_out = plan(asked, tuple(filter(None, words.own.get("parts", "").split(","))))
    out = words.out or next_folder(name)
    console = Console()
    with StudyTold(console, until) as told:
        for line in [*(each.note for each in planned), *left_out]:
            told.tell(line)
        require(bool(planned), f"study {name}: no part can be run.")
        ready = prepare(asked, planned, out)
        told.tell(_plan(ready, jobs))
        told.expect(ready)
        ran = run(ready, jobs, told.heard, told.asked_to_stop)
    _end(console, asked, ran, out, words)


def _plan(ready: "Ready", jobs: int) -> str:
    """What will be done, in a line."""
    asked, rounds = ready.asked, sorted({*ready.rounds})
    each = f"{rounds[0]} rounds" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]} rounds"
    names = ", ".join(planned.part.name for planned in ready.planned)
    said = f"{asked.study.name}, scale={asked.scale}: {len(ready.rounds)} runs of {each} ({names}), {jobs} at a time"
    known = [planned.part for planned in ready.planned if planned.part.minutes is not None]
    if asked.scale == "quick" or not known:
        return f"{said}."
    minutes = sum(part.minutes or 0.0 for part in known)
    how = "measured" if all(part.measured for part in known) else "estimated"
    more = "" if len(known) == len(ready.planned) else f" for {len(known)} of {len(ready.planned)} parts"
    return f"{said}; about {minutes:.0f} minutes of an H200 that several jobs keep busy ({how}){more}."


def _end(console: Console, asked: "Asked", ran: "list[Ran]", out: Path, words: Words) -> None:
    """Tables and files of what has finished, and how to go on where something has not."""
    from fedtailor.run.study.tables import tables, title_of
    from fedtailor.run.study.written import write_part

    wide = console if console.is_terminal else Console(width=max(WIDTH, console.width))
    for each in (each for each in ran if each.finished):
        part, record = each.planned.part, write_part(asked, each, out)
        for rows in tables(record, part).values():
            wide.print(_table(title_of(record, part), rows), highlight=False)
        where = f"Record: {out / part.name}.json, tables: {out / part.name}.md, figures: {out / 'figures'}"
        console.print(where, highlight=False, soft_wrap=True)
    if not all(each.finished for each in ran):
        console.print(
            f"Stopped and saved. Go on with: {words.again(out)}", highlight=False, soft_wrap=True, markup=False
        )
        raise typer.Exit(130)


def _table(title: str, rows: "Rows") -> Table:
    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    made.add_column(rows.head[0], no_wrap=True)
    for heading in rows.head[1:]:
        made.add_column(heading, justify="right")
    for row in rows.body:
        made.add_row(*row)
    return made
