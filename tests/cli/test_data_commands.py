"""`fedtailor data`: lists, and pictures in the terminal."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from fedtailor.cli import app
from fedtailor.data import load
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


def save_numbers(path: Path, **changes: Any) -> Path:
    """Write 12 clients with 20 examples each, with other arrays in the place of some."""
    draws = np.random.default_rng(0)
    x = draws.normal(size=(240, 6)).astype(np.float32)
    arrays: dict[str, Any] = {
        "x": x,
        "y": (x[:, 0] > 0).astype(np.uint8),
        "client": np.arange(240) % 12,
    }
    np.savez(path, **arrays | changes)
    return path


def add_numbers(folder: Path) -> Path:
    """Add the set "mine", and return the folder of its store."""
    done = run("add", "mine", "--from", str(save_numbers(folder / "mine.npz")))
    assert done.exit_code == 0, done.output
    return Path(done.output.strip().rpartition(" in ")[2])


def test_replacing_is_asked_for_and_what_is_there_survives_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / "data"))
    store = add_numbers(tmp_path)
    before = [path.read_bytes() for path in sorted(store.iterdir())]
    other = save_numbers(tmp_path / "other.npz", y=np.arange(240) % 5)
    refusals = {
        f"--from {other}": "mine: there is a data set of this name already; say --replace",
        f"--from {other} --replace --classes 4": "mine: labels must be from 0 to 3, but example ",
        f"--from {other} --replace --scale 0": "mine: scale must be a positive number, got 0.0.",
        f"--from {other} --replace --scale 2": "mine: scale is a factor of integer inputs that",
        f"--from {other} --replace --classes {10**12}": "mine: a model of 1,000,000,000,000 cl",
        "--from nowhere.npz --replace": "There is no file or folder 'nowhere.npz'; expected ",
        f"--from {'x' * 300} --replace": "There is no file or folder 'xxx",
    }
    negative = save_numbers(tmp_path / "negative.npz", y=np.arange(240) - 1)
    refusals[f"--from {negative} --replace"] = "mine: labels must be whole numbers from 0 on, but"
    for words, sentence in refusals.items():
        done = run("add", "mine", *words.split())
        assert isinstance(done.exception, InputError), words
        assert str(done.exception).startswith(sentence)
        assert [path.read_bytes() for path in sorted(store.iterdir())] == before
    done = run("add", "mine", "--from", str(other), "--replace")
    assert done.exit_code == 0
    assert done.output == f"mine: 240 examples read, 240 of 12 clients stored in {store}\n"
    assert np.asarray(load("mine").clients.y).max() == 4


def test_the_servers_own_examples_are_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / "data"))
    draws = np.random.default_rng(1)
    own = {"x_server": draws.normal(size=(50, 6)), "y_server": np.arange(50) % 3}
    path = save_numbers(tmp_path / "mine.npz", **own)
    done = run("add", "mine", "--from", str(path))
    assert done.output.startswith(
        "mine: 290 examples read, 240 of 12 clients stored, 50 of the server's own stored in "
    )
    for options in ({}, {"server": 0.2}):
        direct = load(str(path), **options)
        stored = load("mine", **options)
        assert direct.server is not None
        assert stored.server is not None
        np.testing.assert_array_equal(stored.server.x, direct.server.x)
        np.testing.assert_array_equal(stored.server.y, direct.server.y)
        assert stored.server.x.dtype == direct.server.x.dtype == np.float32
        assert (stored.classes, stored.server.count) == (direct.classes, 1) == (3, 1)
        assert stored.describe().examples == direct.describe().examples == 240
    assert load("mine", server=0).server is None
    taken = load("mine", server=0.1, server_from="examples").server
    assert taken is not None
    assert len(taken.x) == 24
    shown = run("show", "mine")
    assert "50 examples held by the server" in " ".join(shown.output.split())


def test_without_examples_of_the_server_there_are_none_to_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / "data"))
    add_numbers(tmp_path)
    with pytest.raises(InputError, match="mine: server_from=own needs examples that the data set"):
        load("mine", server_from="own")
    half = save_numbers(tmp_path / "half.npz", x_server=np.zeros((3, 6)))
    done = run("add", "half", "--from", str(half))
    assert "must hold both of x_server and y_server or neither" in str(done.exception)


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
