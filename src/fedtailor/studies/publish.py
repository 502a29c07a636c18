"""What a study leaves behind: records, tables and figures in its folder, and tables in documents."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedtailor.errors import InputError, require, suggest_name
from fedtailor.storage.atomic import write_bytes
from fedtailor.studies.config import Part, Study
from fedtailor.studies.execute import PartRun
from fedtailor.studies.figures import render_figures
from fedtailor.studies.locate import is_writable
from fedtailor.studies.plan import StudyRequest
from fedtailor.studies.record import build_part_record, read_record, write_record
from fedtailor.studies.tables import build_tables, make_title, render_markdown

README, FIGURES_DIR = "README.md", "figures"
_MARKED_TABLE = re.compile(
    r"(<!-- (?P<part>[^\s]+)\.(?P<table>[a-z]+) -->\n)(?P<shown>.*?)(<!-- end -->)", re.DOTALL
)
_FIGURE_LINK = re.compile(rf"\]\({FIGURES_DIR}/([^)\s]+\.svg)\)")
_TABLE_START = re.compile(r"<!-- [^\s]+\.(accuracy|sweep|speed|overview) -->")


def write_part(request: StudyRequest, part_run: PartRun, out: Path) -> dict[str, Any]:
    """Writes the record of a finished part, its tables and its figures, and returns the record."""
    part, record = part_run.planned.part, build_part_record(request, part_run, out)
    write_record(out / f"{part.name}.json", record)
    write_bytes(out / f"{part.name}.md", render_document(record, part).encode())
    (out / FIGURES_DIR).mkdir(exist_ok=True)
    for name, drawing in render_figures(record, part).items():
        write_bytes(out / FIGURES_DIR / name, drawing.encode())
    return record


def render_document(record: Mapping[str, Any], part: Part) -> str:
    """A part's tables in Markdown."""
    about = record["about"]
    shown = "\n\n".join(render_markdown(rows) for rows in build_tables(record, part).values())
    figures = f"{part.statistic}{' in %' if record['metric']['name'] in ('accuracy', 'f1') else ''}: {about['figures']}"
    return f"# {make_title(record, part)}\n\n{figures}; mean ± sample standard deviation over seeds.\n\n{shown}\n"


def copy_records(study: Study, out: Path) -> list[Path]:
    """Copies the records of finished parts to the study, and brings the tables of its documents up to date."""
    _require_checkout(study)
    copied = []
    for part in study.parts:
        path = out / f"{part.name}.json"
        if not path.exists():
            continue
        record = read_record(path)
        is_paper_scale = record["about"]["scale"] == "paper"
        require(
            is_paper_scale,
            f"study {study.name}: the record of {part.name} is of scale=quick; run it with scale=paper.",
        )
        write_record(study.get_record_path(part), record)
        copied.append(study.get_record_path(part))
    require(bool(copied), f"study {study.name}: '{out}' holds no record of a finished part.")
    update_document(study)
    return copied


def update_document(study: Study) -> None:
    """Brings the tables and figures of a study's documents up to date with its records."""
    _require_checkout(study)
    own = study.folder / README
    for path in documents(study):
        text = replace_tables(study, path.read_text(), path)
        for name, drawing in (render_linked_figures(study, text) if path == own else {}).items():
            (study.folder / FIGURES_DIR).mkdir(exist_ok=True)
            write_bytes(study.folder / FIGURES_DIR / name, drawing.encode())
        write_bytes(path, text.encode())


def documents(study: Study) -> list[Path]:
    """The documents that show tables of a study: its own, if it has one, and those of the checkout that it names."""
    own = study.folder / README
    named = [study.folder.parents[1] / name for name in study.documents]
    for path in named:
        require(path.is_file(), f"study {study.name}: there is no document '{path}'.")
    return [own, *named] if own.exists() else named


def _require_checkout(study: Study) -> None:
    here = f"'{study.folder}' is not in a checkout"
    require(
        is_writable(study), f"study {study.name}: {here}; write=true is for those who work on one."
    )


def replace_tables(study: Study, text: str, path: Path | None = None) -> str:
    """A document with every marked table as the records make it; one without a record stays as it is."""
    for mark in find_marked_tables(study, text, path):
        record = study.get_record_path(study.get_part(mark["part"]))
        if record.exists():
            table = _render_table(study, mark, path or study.folder / README)
            text = text.replace(mark[0], f"{mark[1]}\n{table}\n\n{mark[5]}")
    return text


def render_linked_figures(study: Study, text: str) -> dict[str, str]:
    """The figures that a document shows, as the records make them, by the names of their files."""
    figures: dict[str, str] = {}
    for part in study.parts:
        if (path := study.get_record_path(part)).exists():
            figures |= render_figures(read_record(path), part)
    shown = list(dict.fromkeys(_FIGURE_LINK.findall(text)))
    for name in shown:
        require(
            name in figures,
            f"'{study.folder / README}': no record makes the figure '{name}'; {suggest_name(name, figures)}",
        )
    return {name: figures[name] for name in shown}


def find_marked_tables(
    study: Study, text: str, path: Path | None = None
) -> Iterator["re.Match[str]"]:
    """The marked tables of a document; a mark without its end is refused."""
    found = list(_MARKED_TABLE.finditer(text))
    starts = [match[0] for match in _TABLE_START.finditer(text)]
    for start in starts[len(found) :]:
        raise InputError(f"'{path or study.folder / README}': {start} has no <!-- end -->.")
    yield from found


def _render_table(study: Study, mark: "re.Match[str]", path: Path) -> str:
    part = study.get_part(mark["part"])
    part_tables, wanted = (
        build_tables(read_record(study.get_record_path(part)), part),
        mark["table"],
    )
    require(
        wanted in part_tables,
        f"'{path}': {part.name} shows no table '{wanted}'; {suggest_name(wanted, part_tables)}",
    )
    return render_markdown(part_tables[wanted])
