"""What the documents promise is run."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from agreement import distance
from fedtailor import methods
from fedtailor.data import load_digits
from fedtailor.engines import factory
from fedtailor.training.overrides import read_run_config
from fedtailor.training.runner import start_run
from scenarios import toy_setting, train

ROOT = Path(__file__).parent.parent


def code_in(document: str, number: int = 0) -> str:
    return str(re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)[number])


def test_the_readme_example_runs_in_at_most_15_lines(capsys: pytest.CaptureFixture[str]) -> None:
    code = code_in("README.md")
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    names: dict[str, Any] = {}
    exec(code, names)
    new, mine = (float(line) for line in capsys.readouterr().out.splitlines())
    assert new > 0.8
    assert mine > 0.8


def test_own_data_of_the_document_on_data_is_added_and_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    exec(code_in("docs/data.md"), {})
    assert capsys.readouterr().out.splitlines()[-1] == "  server: 12 examples"


def test_sets_of_the_document_on_data_are_written_and_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(code_in("docs/data.md", 1), {})
    assert capsys.readouterr().out.splitlines()[-1] == "  server: 16 examples"
    commands = re.findall(
        r"^fedtailor (run .*\.npz .*model=.*)$", (ROOT / "docs/data.md").read_text(), re.MULTILINE
    )
    assert len(commands) == 3
    for number, command in enumerate(commands):
        words = [*command.split()[1:], "rounds=1", "cohort=2", "finetune_epochs=1"]
        record = start_run(read_run_config(words), tmp_path / str(number)).record
        assert record.status == "finished"


@pytest.fixture
def fedavgm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The method of the document, as if saved in its file and its name added to the list."""
    file = ModuleType("fedtailor.methods.fedavgm")
    monkeypatch.setitem(sys.modules, file.__name__, file)
    exec(code_in("docs/adding-a-method.md"), file.__dict__)
    monkeypatch.setattr(methods, "NAMES", (*methods.NAMES, "fedavgm"))


@pytest.mark.usefixtures("fedavgm")
def test_the_method_of_the_document_is_fedavg_with_momentum() -> None:
    setting = toy_setting("fedavgm", momentum_at_server=0.7)
    runs = [train(setting, name=name)[0].params for name in factory.NAMES]
    assert distance(*runs) < 1e-10
    assert distance(runs[0], train(toy_setting("fedavg", server_momentum=0.7))[0].params) < 1e-12
    assert distance(runs[0], train(toy_setting("fedavg"))[0].params) > 1e-3


def test_the_method_of_the_document_is_short() -> None:
    assert (
        len([line for line in code_in("docs/adding-a-method.md").splitlines() if line.strip()])
        <= 45
    )


def list_imports(source: str) -> set[str]:
    """Return the names of fedtailor that the source of a method imports."""
    names = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedtailor"):
            names |= {alias.name for alias in node.names}
    return names


def test_the_names_that_the_document_counts_are_those_that_methods_import() -> None:
    document = (ROOT / "docs/adding-a-method.md").read_text()
    section = document.partition("## The names to know")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `[\w.]+` \| (.*) \|$", section, re.MULTILINE)
    main_names = set[str]()
    for row in rows:
        without_remarks = re.sub(r"\([^)]*\)", "", row)
        main_names |= set(re.findall(r"`(\w+)`", without_remarks))
    assert len(main_names) == 15
    assert "fifteen" in section
    folder = Path(methods.__file__).parent
    sources = {
        name: (folder / f"{name.replace('-', '_')}.py").read_text() for name in methods.NAMES
    }
    imports = {name: list_imports(source) for name, source in sources.items()}
    assert "FedProx, in 39\nlines, imports six names" in section
    assert len(sources["fedprox"].splitlines()) == 39
    assert len(imports["fedprox"]) == 6
    assert imports["fedprox"] <= main_names
    assert "FedAvgM above imports nine" in section
    example_imports = list_imports(code_in("docs/adding-a-method.md"))
    assert len(example_imports) == 9
    assert example_imports <= main_names
    used = set.union(*imports.values())
    assert main_names < used
    assert used <= set(re.findall(r"`(\w+)`", section))


def test_the_readme_is_short_and_names_both_commands() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    assert any(line.startswith("make demo") for line in lines)
    assert any(line.startswith("make test") for line in lines)


@pytest.mark.parametrize(
    "document",
    sorted(str(p.relative_to(ROOT)) for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]),
)
def test_links_between_documents_lead_somewhere(document: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / document).read_text())
    for link in links:
        assert ((ROOT / document).parent / link).exists(), link


def test_the_quickstart_leads_to_a_model_for_a_newcomer(tmp_path: Path) -> None:
    document = (ROOT / "docs/quickstart.md").read_text()
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    }
    for kind, code in re.findall(r"```(python|python file=\S+|sh)\n(.*?)```", document, re.DOTALL):
        if kind.startswith("python file="):
            (tmp_path / kind.removeprefix("python file=")).write_text(code)
            continue
        command = ["bash", "-e", "-c", code] if kind == "sh" else [sys.executable, "-c", code]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        assert done.stderr == ""
    _, y = load_digits()
    true = y[(y // 2 * 8 + np.arange(len(y)) % 8) == 7][15:]
    answers = np.loadtxt(tmp_path / "answers.csv", delimiter=",", skiprows=1, dtype=int)
    assert (answers[:, 1] == true).mean() > 0.8
    assert (tmp_path / "first.html").stat().st_size > 100_000
