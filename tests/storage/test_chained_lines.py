"""Lines with checksums: intact ones are read up to the first that is not what was written."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel

from damage import LINE_DAMAGES, damage_lines, iterate_mutations
from fedtailor.storage.chained_lines import chain_line, read_chained_lines


class Entry(BaseModel):
    steps: int
    share: float


OWNER = "this run"
ENTRIES = [Entry(steps=number, share=0.1 * number) for number in range(6)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    last_checksum = OWNER
    text = ""
    for entry in ENTRIES:
        line = chain_line(entry, last_checksum)
        text += line.text
        last_checksum = line.checksum
    (tmp_path / "lines.jsonl").write_text(text)
    return tmp_path / "lines.jsonl"


def read_entries(path: Path) -> tuple[list[Entry], int | None]:
    lines, damaged_line = read_chained_lines(path, Entry, OWNER)
    return [line.entry for line in lines], damaged_line


def test_lines_are_read_back(path: Path) -> None:
    assert read_entries(path) == (ENTRIES, None)
    assert (
        "".join(line.text for line in read_chained_lines(path, Entry, OWNER).lines)
        == path.read_text()
    )
    assert read_entries(path.with_name("none")) == ([], None)


@pytest.mark.parametrize("owner", ["", "another run"])
def test_the_file_of_another_owner_is_noticed_from_its_first_line_on(
    owner: str, path: Path
) -> None:
    assert read_chained_lines(path, Entry, owner) == ([], 1)


@pytest.mark.parametrize("damage", LINE_DAMAGES)
def test_a_changed_line_and_all_behind_it_are_left_out(
    damage: Callable[[list[str]], list[str]], path: Path
) -> None:
    damage_lines(path, damage)
    assert read_entries(path) == (ENTRIES[:2], 3)


def test_a_line_that_was_cut_off_is_no_damage(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert read_entries(path) == (ENTRIES[:5], None)
    path.write_bytes(content + b'{"steps": 6, "sh')
    assert read_entries(path) == (ENTRIES, None)


def test_whatever_happens_to_the_file_only_what_was_written_is_read(path: Path) -> None:
    content = path.read_bytes()
    for seed in range(100):
        for change, mutated in iterate_mutations(content, seed):
            path.write_bytes(mutated)
            entries, damaged_line = read_entries(path)
            assert entries == ENTRIES[: len(entries)], change
            is_noticed = damaged_line == len(entries) + 1 or len(entries) < len(ENTRIES)
            assert is_noticed or mutated.startswith(content), change
