"""`fedtailor data`: lists, and pictures in the terminal."""

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from fedtailor.cli import app
from fedtailor.errors import InputError

BLOCKS = "░▒▓█"


def run(*words: str, columns: int = 80, terminal: bool = False) -> Result:
    environment = {
        "COLUMNS": str(columns),
        "FORCE_COLOR": "1" if terminal else None,
        "NO_COLOR": None,
        "TERM": "xterm",
    }
    return CliRunner().invoke(app, ["data", *words], env=environment)


def test_without_a_command_data_sets_are_listed_or_one_is_told_of() -> None:
    listed = run()
    assert listed.exit_code == 0, listed.output
    assert re.search(r"^digits  +\S", listed.output, re.MULTILINE)
    assert listed.output == run("list").output
    told = run("digits")
    assert re.search(r"^clients +50 *$", told.output, re.MULTILINE)
    assert told.output == run("list", "digits").output
    assert run("digits", "--json").output == run("--json", "digits").output


def test_the_picture_is_plain_in_a_pipe_and_fits() -> None:
    for columns in (60, 80, 140):
        done = run("show", "digits", "clients=40", "data.labels=3", columns=columns)
        assert done.exit_code == 0, done.output
        assert done.output.isascii()
        assert max(map(len, done.output.splitlines())) <= columns
        assert "of 40 clients (28 participating, 4 validation and 8 unseen)" in " ".join(
            done.output.split()
        )
        assert re.search(r"^labels of a client +3\.0 of 10", done.output, re.MULTILINE)
        rows = re.findall(r"^    (\d)  [ .:*#]+$", done.output, re.MULTILINE)
        assert rows == list("0123456789")


def test_the_picture_has_blocks_and_colors_in_a_terminal() -> None:
    done = run("show", "digits", columns=120, terminal=True)
    assert done.exit_code == 0, done.output
    assert set(BLOCKS) & set(done.output) >= set("▒▓█")
    assert "\x1b[36m" in done.output
    lines = re.sub(r"\x1b\[[\d;]*m", "", done.output).splitlines()
    assert max(map(len, lines)) <= 120
    assert "label  participating" in "\n".join(lines)


def test_a_terminal_without_blocks_gets_none() -> None:
    environment = {"FORCE_COLOR": "1", "COLUMNS": "80"}
    done = CliRunner(charset="ascii").invoke(
        app, ["data", "show", "digits", "clients=10"], env=environment
    )
    assert done.exit_code == 0, done.exception
    assert "\x1b[36m" in done.output
    assert "#" in done.output
    assert done.output.isascii()


def test_at_most_so_many_clients_are_drawn() -> None:
    done = run("show", "digits", "--limit", "7")
    assert "7 of 50 clients are drawn" in done.output
    size = next(line for line in done.output.splitlines() if line.startswith(" size"))
    assert len("".join(size.split()[1:])) == 14  # two columns each
    assert "are drawn" not in run("show", "digits", columns=90).output


def test_a_page_is_written_and_named(tmp_path: Path) -> None:
    place = tmp_path / "with [brackets].html"
    done = run("show", "digits", "clients=12", "--html", str(place))
    assert done.output.splitlines()[-1] == f"page written to {place}"
    assert "<h1>digits: clients=12</h1>" in place.read_text()


def test_files_of_ones_own_are_shown(tmp_path: Path) -> None:
    place = tmp_path / "people.npz"
    np.savez(
        place,
        x=np.arange(24).reshape(12, 2),
        y=np.linspace(0, 1, 12),
        client=np.repeat(["a", "b", "c"], 4),
    )
    done = run("show", str(place), "unseen_clients=0", "server=2")
    assert done.exit_code == 0, done.output
    assert "Targets are numbers, not labels" in done.output
    assert (
        "people: 10 examples of 3 clients (3 participating); 2 examples held by the server."
        in " ".join(done.output.split())
    )
    assert re.search(r"^ *examples  clients$", done.output, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("show digit", "There is no data set 'digit'; did you mean digits?"),
        ("show digits client=3", "digits: there is no option 'client'; did you mean clients?"),
        ("show digits clients", "'clients' is not KEY=VALUE."),
        ("show digits clients=0", "digits: clients must be a whole number of at least 1, got 0."),
        ("digit", "There is no data set 'digit'; did you mean digits?"),
        (
            "show digits --html /no/such/folder/x.html",
            "'/no/such/folder/x.html' could not be written: ",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(words: str, sentence: str) -> None:
    done = run(*words.split())
    assert isinstance(done.exception, InputError)
    assert str(done.exception).startswith(sentence)


def add_numbers(folder: Path) -> Path:
    """Add a set "mine" of 12 clients with 20 examples each, and return the folder of its store."""
    draws = np.random.default_rng(0)
    x = draws.normal(size=(240, 6)).astype(np.float32)
    labels = (x[:, 0] > 0).astype(np.uint8)
    path = folder / "mine.npz"
    np.savez(path, x=x, y=labels, client=np.arange(240) % 12)
    done = run("add", "mine", "--from", str(path))
    assert done.exit_code == 0, done.output
    return Path(done.output.strip().rpartition(" in ")[2])


TRAIN = "run method=fedavg data=mine model=mlp rounds=1 cohort=4 threads=1 seed=0"


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("file", ["column-x.bin", "column-y.bin", "offsets.bin", "scenario"])
def test_a_run_on_damaged_data_is_refused_or_the_same(
    file: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / "data"))
    store = add_numbers(tmp_path)
    train = [*TRAIN.split(), f"engine={engine}"]
    CliRunner().invoke(app, [*train, f"out={tmp_path / 'good'}"], catch_exceptions=False)
    if file == "scenario":
        (path,) = store.glob("scenarios/*/split-train-index.npy")
        content = np.fromfile(path, np.uint8)
        content[200::8] ^= 1  # of each row's number
    else:
        path = store / file
        content = np.fromfile(path, np.uint8)
        content[::4] ^= 1  # the lowest bit of every float
    content.tofile(path)
    done = CliRunner().invoke(app, [*train, f"out={tmp_path / 'damaged'}"])
    if file == "scenario":
        assert done.exit_code == 0, done.exception
        good, damaged = (
            (tmp_path / name / "model.safetensors").read_bytes() for name in ("good", "damaged")
        )
        assert good == damaged
        return
    assert isinstance(done.exception, InputError)
    sentence = str(done.exception)
    assert sentence.startswith("mine: the store is damaged, ")
    assert file in sentence
    assert sentence.endswith("; build it again with `fedtailor data add mine --replace`.")
    assert not (tmp_path / "damaged" / "model.safetensors").exists()


def test_help_has_examples_for_every_command() -> None:
    for command in ((), ("list",), ("show",)):
        done = run(*command, "--help")
        assert done.exit_code == 0
        assert "fedtailor data" in done.output.split("Example", 1)[1]
