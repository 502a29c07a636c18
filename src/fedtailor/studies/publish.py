"""Publishing a study: files for finished parts, and tables and figures in documents.

Tables in a document stand between `<!-- PART.TABLE -->` and `<!-- end -->`; figures are those that
the study's README.md links to.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from fedtailor.errors import InputError, require, suggest_name
from fedtailor.storage.atomic import write_bytes
from fedtailor.storage.manifest import ListedFolder
from fedtailor.storage.typed_json import parse_versioned
from fedtailor.studies.client_scores import ClientScores, read_client_scores
from fedtailor.studies.config import Part, Study
from fedtailor.studies.execute import STUDY_KIND, PartRun
from fedtailor.studies.figures import render_figures
from fedtailor.studies.locate import is_writable
from fedtailor.studies.plan import StudyRequest
from fedtailor.studies.record import (
    PartRecord,
    build_part_record,
    encode_record,
    read_record,
    write_record,
)
from fedtailor.studies.tables import build_tables, make_title, render_markdown

README = "README.md"
FIGURES_DIR = "figures"
_MARKED_TABLE = re.compile(
    r"(<!-- (?P<part>[^\s]+)\.(?P<table>[a-z]+) -->\n)(?P<shown>.*?)(<!-- end -->)", re.DOTALL
)
_FIGURE_LINK = re.compile(rf"\]\({FIGURES_DIR}/([^)\s]+\.svg)\)")
_TABLE_START = re.compile(r"<!-- [^\s]+\.(accuracy|sweep|speed|overview) -->")


def write_part(request: StudyRequest, part_run: PartRun, out: Path) -> PartRecord:
    """Write the record, tables and figures of a finished part, and return the record.

    Args:
        request: What was run.
        part_run: The part with its runs.
        out: The folder of the study's runs.
    """
    part = part_run.planned.part
    record = build_part_record(request, part_run, out)
    contents = {f"{part.name}.json": encode_record(record)}
    if record.client_scores is not None:
        name = record.client_scores.name
        contents[name] = (out / name).read_bytes()
    ListedFolder(out).create_or_write(STUDY_KIND, contents)
    scores = read_client_scores(out, record.client_scores)
    write_bytes(out / f"{part.name}.md", render_document(record, part, scores).encode())
    (out / FIGURES_DIR).mkdir(exist_ok=True)
    _write_figures(out, render_figures(record, part))
    return record


def _write_figures(folder: Path, figures: dict[str, str]) -> None:
    """Write figures, SVG by file name, below a folder."""
    for name, svg in figures.items():
        (folder / FIGURES_DIR).mkdir(exist_ok=True)
        write_bytes(folder / FIGURES_DIR / name, svg.encode())


def render_document(record: PartRecord, part: Part, scores: ClientScores | None = None) -> str:
    """Return all tables of a part as a Markdown document.

    Args:
        record: The record of the part.
        part: The part.
        scores: The scores of its clients; None if there are none.
    """
    tables = build_tables(record, part, scores)
    rendered_tables = "\n\n".join(render_markdown(table) for table in tables.values())
    unit = " in %" if record.metric.is_percent else ""
    note = (
        f"{part.statistic}{unit}: {record.about.figures}; "
        "mean ± sample standard deviation over seeds."
    )
    return f"# {make_title(record, part)}\n\n{note}\n\n{rendered_tables}\n"


def copy_records(study: Study, out: Path) -> list[Path]:
    """Copy the records of finished parts to the study, update its documents, and return the paths.

    Records at any scale but paper are refused.
    """
    _require_checkout(study)
    folder = ListedFolder(out, "repeat the command that made it, with the same out.")
    copied_paths = []
    for part in study.parts:
        path = out / f"{part.name}.json"
        if not path.exists():
            continue
        record = parse_versioned(path, folder.read(path.name), PartRecord)
        require(
            record.about.scale == "paper",
            f"study {study.name}: the record of {part.name} is of scale=quick; "
            "run it with scale=paper.",
        )
        target_path = study.get_record_path(part)
        if record.client_scores is not None:
            content = (out / record.client_scores.name).read_bytes()
            write_bytes(study.folder / record.client_scores.name, content)
        write_record(target_path, record)
        copied_paths.append(target_path)
    require(bool(copied_paths), f"study {study.name}: '{out}' holds no record of a finished part.")
    update_document(study)
    return copied_paths


def update_document(study: Study) -> None:
    """Replace the tables of a study's documents, and the figures of its README.md, by new ones."""
    _require_checkout(study)
    readme_path = study.folder / README
    for path in list_documents(study):
        text = replace_tables(study, path.read_text(), path)
        if path == readme_path:
            _write_figures(study.folder, render_linked_figures(study, text))
        write_bytes(path, text.encode())


def list_documents(study: Study) -> list[Path]:
    """Return the documents with tables of a study: its README.md if it has one, and named ones."""
    readme_path = study.folder / README
    checkout = study.folder.parents[1]
    paths = [checkout / name for name in study.documents]
    for path in paths:
        require(path.is_file(), f"study {study.name}: there is no document '{path}'.")
    return [readme_path, *paths] if readme_path.exists() else paths


def _require_checkout(study: Study) -> None:
    require(
        is_writable(study),
        f"study {study.name}: '{study.folder}' is not in a checkout; "
        "write=true is for studies in a checkout.",
    )


def replace_tables(study: Study, text: str, path: Path | None = None) -> str:
    """Return a document with every marked table as its record makes it.

    Tables of parts without a record stay as they are.

    Args:
        study: The study that the tables are of.
        text: The content of the document.
        path: Where the document is, for messages; None: it is the study's README.md.
    """
    for mark in find_marked_tables(study, text, path):
        record_path = study.get_record_path(study.get_part(mark["part"]))
        if record_path.exists():
            table = _render_table(study, mark, path or study.folder / README)
            text = text.replace(mark[0], f"{mark[1]}\n{table}\n\n{mark[5]}")
    return text


def render_linked_figures(study: Study, text: str) -> dict[str, str]:
    """Return the figures that a document links to, as SVG by file name."""
    figures: dict[str, str] = {}
    for part in study.parts:
        path = study.get_record_path(part)
        if path.exists():
            figures |= render_figures(read_record(path), part)
    linked_names = dict.fromkeys(_FIGURE_LINK.findall(text))
    for name in linked_names:
        require(
            name in figures,
            f"'{study.folder / README}': no record makes the figure '{name}'; "
            f"{suggest_name(name, figures)}",
        )
    return {name: figures[name] for name in linked_names}


def find_marked_tables(
    study: Study, text: str, path: Path | None = None
) -> Iterator["re.Match[str]"]:
    """Yield the marked tables of a document; a mark without an end is an error.

    Args:
        study: The study that the tables are of.
        text: The content of the document.
        path: Where the document is, for messages; None: it is the study's README.md.
    """
    tables = list(_MARKED_TABLE.finditer(text))
    starts = [match[0] for match in _TABLE_START.finditer(text)]
    if len(starts) > len(tables):
        location = path or study.folder / README
        raise InputError(f"'{location}': {starts[len(tables)]} has no <!-- end -->.")
    yield from tables


def _render_table(study: Study, mark: "re.Match[str]", path: Path) -> str:
    part = study.get_part(mark["part"])
    table_name = mark["table"]
    record = read_record(study.get_record_path(part))
    scores = read_client_scores(study.folder, record.client_scores)
    tables = build_tables(record, part, scores)
    require(
        table_name in tables,
        f"'{path}': {part.name} shows no table '{table_name}'; {suggest_name(table_name, tables)}",
    )
    return render_markdown(tables[table_name])
