"""Names are data: whatever a label, a path, a client or a key is called, a terminal shows it and
obeys nothing, and what is printed can be copied.
"""

import io
import os
import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

import command_line
from command_line import Printed
from fedtailor.cli.terminal import PrintableColumn, TerminalConsole
from fedtailor.errors import make_printable
from fedtailor.training.shell_commands import join_args, quote_path

NAMES = {
    "markup": "[red]x[bold]",
    "closing": "[/]",
    "escape": "a\x1b[31mb",
    "line": "x\ny",
    "direction": "\u202egnp",
    "control": "é\x9b31m",
    "bytes": os.fsdecode(b"b\xff\xfe"),
    "emoji": ":smile:",
    "dash": "-x",
    "quote": "it's a b",
}
SMALL = ["method=fedavg", "rounds=1", "cohort=2", "hidden=4", "finetune_epochs=1", "threads=1"]


Call = Callable[..., Printed]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Call:
    """Runs a command in this process, in a folder of its own, and checks all that it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / "store"))
    return partial(command_line.call, monkeypatch, capfd)


def find_path(printed: str) -> Path:
    """The path that is printed, as a shell understands it when it is copied."""
    copied = subprocess.run(
        ["bash", "-c", f"printf %s {printed}"], capture_output=True, check=True
    ).stdout
    return Path(os.fsdecode(copied))


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_labels_and_folders_of_runs(name: str, call: Call) -> None:
    out = Path("runs", name)
    run = call("run", *SMALL, "data.clients=12", f"label={name}", f"out={out}")
    assert run.code == 0
    assert f"\n{make_printable(name)}, seed 0: 1 rounds\n" in run.out
    assert re.search(rf"^ ?{re.escape(make_printable(name))} ", run.out, re.MULTILINE)
    printed = run.out.splitlines()[-1].removeprefix("Report: ")
    path = find_path(printed) if "$'" in printed else Path(printed)
    assert path == out / "report.html"
    assert path.is_file()
    assert call("resume", str(out)).out.startswith("The run in ")
    again = call("run", *SMALL, f"out={out}")
    assert again.code == 2
    command = again.err.partition("resume it with: fedtailor resume ")[2].strip()
    assert find_path(command) == out
    report = call("report", str(out), "--to", f"./{name.replace('/', '-')}.html")
    assert report.out.startswith("Report: ")


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_of_files_and_clients(name: str, call: Call) -> None:
    name = name.replace("/", "-")
    is_text = "\udcff" not in name  # a file has no other names of clients
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 3)).astype("f4")
    y = rng.integers(0, 3, 240)
    clients = [f"{name}{index}" if is_text else str(index) for index in range(12)]
    np.savez(f"{name}.npz", x=x, y=y, client=np.repeat(clients, 20))
    run = call("run", *SMALL, f"data=./{name}.npz", "out=out")
    assert run.out.startswith(f"{make_printable(name)}: ")
    shown = call("data", "show", f"./{name}.npz", "--html", f"./{name}.html")
    assert shown.out.startswith(f"{make_printable(name)}: ")
    assert call("data", f"./{name}.npz").code == 0
    refused = call("export", "out", "--client", f"{name}99", "--to", "model")
    assert refused.code == 2
    assert repr(f"{name}99")[1:-1] in refused.err or make_printable(f"{name}99") in refused.err
    exported = call("export", "out", "--client", clients[3], "--to", f"models/{name}")
    assert f"The model of client {make_printable(clients[3])} is in " in exported.out
    np.savez("mine.npz", x=x[:4], y=y[:4])
    to = f"./{name}"
    made = call("personalize", "out", "--data", "mine.npz", "--to", to)
    command = re.findall(r"Use it with: fedtailor predict (.*) --data", made.out)[0]
    assert find_path(command).resolve() == Path(to).resolve()
    predicted = call("predict", to, "--data", "mine.npz", "--to", f"./{name}.csv")
    assert predicted.out.startswith("4 predictions are in ")


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_folders_of_comparisons_and_trials(name: str, call: Call) -> None:
    out = Path("runs", name)
    small = [*SMALL[1:], "seeds=0", "data.clients=12", "baselines=false", f"out={out}"]
    tuned = call("tune", "fedavg", *small, "tune.lr=0.1,0.2", "trials=2")
    printed = tuned.out.splitlines()[-2].removeprefix("Tuned comparison: ")
    assert (find_path(printed) if "$'" in printed else Path(printed)).is_file()
    command = tuned.out.splitlines()[-1].removeprefix("Run it with: fedtailor compare ")
    assert find_path(command) == out / "tuned.toml"
    refused = call("compare", "fedavg", *small)
    assert refused.code == 2
    assert make_printable(str(out)) in refused.err


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_unknown_words_of_every_command(name: str, call: Call) -> None:
    commands = [
        [name],
        ["run", f"{name}=1"],
        ["run", f"data={name}"],
        ["run", f"model={name}.py:Net"],
        ["run", f"method={name}"],
        ["run", f"device={name}"],
        ["run", f"lr={name}"],
        ["run", f"data.{name}=1"],
        ["run", f"data.clients={name}"],
        ["run", f"./{name}.toml"],
        ["run", f"{name}=1", f"{name}=2"],
        ["compare", f"./{name}"],
        ["compare", f"fedavg@ {name}"],
        ["tune", "fedavg", f"tune.{name}=1"],
        ["tune", "fedavg", f"tune.lr={name}..1"],
        ["inspect", f"{name}=1"],
        ["resume", f"./{name}"],
        ["report", f"./{name}"],
        ["methods", f"./{name}"],
        ["study", f"./{name}"],
        ["study", "per_fedavg", f"parts={name}"],
        ["study", "per_fedavg", f"scale={name}"],
        ["data", "show", "digits", f"{name}=1"],
        ["data", "show", "digits", f"--limit={name}"],
        ["data", f"./{name}"],
        ["data", "add", f"./{name}"],
        ["data", "add", "mine", "--from", f"./{name}"],
        ["data", "remove", f"./{name}"],
        ["export", f"./{name}", "--client", name, "--to", name],
        ["personalize", f"./{name}", "--data", name, "--to", name],
        ["predict", f"./{name}", "--data", name, "--to", name],
    ]
    escaped = {make_printable(name), make_printable(repr(name)[1:-1])}
    for words in commands:
        refused = call(*words)
        assert refused.code == 2, words
        is_named = any(form in refused.err for form in escaped)
        assert is_named or words[1].startswith("--limit") or "--limit=" in words[-1], refused.err


def test_a_console_obeys_nothing_that_it_is_given() -> None:
    name = "".join(NAMES.values())
    file = io.StringIO()
    console = TerminalConsole(file=file, width=500, force_terminal=True, color_system=None)
    table = Table(name, title=name, caption=name)
    table.add_column(Text("two\nlines"))
    table.add_row(name, "")
    console.print(table)
    console.print(name)
    console.print_line(name * 20)
    printed = file.getvalue()
    assert "\x1b[31m" not in printed
    assert printed.count(make_printable(name)) == 25
    assert "two\\nlines" not in printed


def test_a_progress_bar_obeys_nothing_that_it_is_given() -> None:
    name = "".join(NAMES.values())
    file = io.StringIO()
    console = TerminalConsole(file=file, width=500, force_terminal=True, color_system=None)
    with Progress(PrintableColumn("{task.fields[name]}"), console=console) as progress:
        progress.add_task("", name=name)
    assert make_printable(name) in file.getvalue()
    assert "\x1b[31m" not in file.getvalue()


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_quoted_word_is_the_same_word_in_a_shell(name: str) -> None:
    words = ["a", name, f"'\\{name}"]
    command = f"printf '%s\\0' {join_args(words)}"
    copied = subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout
    assert [os.fsdecode(word) for word in copied.split(b"\0")[:-1]] == words
    assert find_path(quote_path(Path(name))) == Path(name)
