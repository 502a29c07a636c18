"""What a study leaves behind: records, tables and figures in its folder, and tables in documents."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedtailor.disk import write_bytes
from fedtailor.errors import InputError, nearest, require
from fedtailor.run.study.figures import drawings
from fedtailor.run.study.places import writable
from fedtailor.run.study.planning import Asked
from fedtailor.run.study.reading import Part, Study
from fedtailor.run.study.records import read_record, record_of, write_record
from fedtailor.run.study.running import Ran
from fedtailor.run.study.tables import markdown, tables, title_of

README, FIGURES = "README.md", "figures"
_MARKED = re.compile(r"(<!-- (?P<part>[^\s]+)\.(?P<table>[a-z]+) -->\n)(?P<shown>.*?)(<!-- end -->)", re.DOTALL)
_PICTURE = re.compile(rf"\]\({FIGURES}/([^)\s]+\.svg)\)")
_BROKEN = re.compile(r"<!-- [^\s]+\.(accuracy|sweep|speed|overview) -->")


def write_part(asked: Asked, ran: Ran, out: Path) -> dict[str, Any]:
    """Writes the record of a finished part, its tables and its figures, and returns the record."""
    part, record = ran.planned.part, record_of(asked, ran, out)
    write_record(out / f"{part.name}.json", record)
    write_bytes(out / f"{part.name}.md", document(record, part).encode())
    (out / FIGURES).mkdir(exist_ok=True)
    for name, drawing in drawings(record, part).items():
        write_bytes(out / FIGURES / name, drawing.encode())
    return record


def document(record: Mapping[str, Any], part: Part) -> str:
    """A part's tables in Markdown."""
    about = record["about"]
    shown = "\n\n".join(markdown(rows) for rows in tables(record, part).values())
    figures = f"{part.statistic}{' in %' if record['metric']['name'] in ('accuracy', 'f1') else ''}: {about['figures']}"
    return f"# {title_of(record, part)}\n\n{figures}; mean ± sample standard deviation over seeds.\n\n{shown}\n"


def keep(study: Study, out: Path) -> list[Path]:
    """Copies the records of finished parts to the study, and brings the tables of its documents up to date."""
    _require_checkout(study)
    kept = []
    for part in study.parts:
        path = out / f"{part.name}.json"
        if not path.exists():
            continue
        record = read_record(path)
        paper = record["about"]["scale"] == "paper"
        require(paper, f"study {study.name}: the record of {part.name} is of scale=quick; run it with scale=paper.")
        write_record(study.record_of(part), record)
        kept.append(study.record_of(part))
    require(bool(kept), f"study {study.name}: '{out}' holds no record of a finished part.")
    refresh(study)
    return kept


def refresh(study: Study) -> None:
    """Brings the tables and figures of a study's documents up to date with its records."""
    _require_checkout(study)
    own = study.folder / README
    for path in documents(study):
        text = refreshed(study, path.read_text(), path)
        for name, drawing in (pictures(study, text) if path == own else {}).items():
            (study.folder / FIGURES).mkdir(exist_ok=True)
            write_bytes(study.folder / FIGURES / name, drawing.encode())
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
    require(writable(study), f"study {study.name}: {here}; write=true is for those who work on one.")


def refreshed(study: Study, text: str, path: Path | None = None) -> str:
    """A document with every marked table as the records make it; one without a record stays as it is."""
    for found in marked(study, text, path):
        record = study.record_of(study.part(found["part"]))
        if record.exists():
            table = _table(study, found, path or study.folder / README)
            text = text.replace(found[0], f"{found[1]}\n{table}\n\n{found[5]}")
    return text


def pictures(study: Study, text: str) -> dict[str, str]:
    """The figures that a document shows, as the records make them, by the names of their files."""
    made: dict[str, str] = {}
    for part in study.parts:
        if (path := study.record_of(part)).exists():
            made |= drawings(read_record(path), part)
    shown = list(dict.fromkeys(_PICTURE.findall(text)))
    for name in shown:
        require(name in made, f"'{study.folder / README}': no record makes the figure '{name}'; {nearest(name, made)}")
    return {name: made[name] for name in shown}


def marked(study: Study, text: str, path: Path | None = None) -> Iterator["re.Match[str]"]:
    """The marked tables of a document; a mark without its end is refused."""
    found = list(_MARKED.finditer(text))
    starts = [match[0] for match in _BROKEN.finditer(text)]
    for start in starts[len(found) :]:
        raise InputError(f"'{path or study.folder / README}': {start} has no <!-- end -->.")
    yield from found


def _table(study: Study, found: "re.Match[str]", path: Path) -> str:
    part = study.part(found["part"])
    made, wanted = tables(read_record(study.record_of(part)), part), found["table"]
    require(wanted in made, f"'{path}': {part.name} shows no table '{wanted}'; {nearest(wanted, made)}")
    return markdown(made[wanted])
