"""Arrows point one way: what each room may import, read from the source."""

import ast
from pathlib import Path

import pytest

import fedtailor

ROOT = Path(fedtailor.__file__).parent
BELOW = {
    "errors": set(),
    "disk": {"errors"},
    "types": set(),
    "trees": {"types"},
    "place": set(),
    "native": {"disk", "place"},
    "keyed": {"errors", "kernels", "native"},
    "calculus": {"errors", "trees", "types"},
    "optim": {"errors", "trees", "types"},
    "purity": {"errors", "keyed"},
    "kernels": set(),
    "convolution": {"kernels", "purity"},
    "losses": set(),
    "task": {"convolution", "errors", "keyed", "losses", "purity", "types"},
    "models": {"calculus"},
    "methods": {"calculus", "errors", "keyed", "optim", "task", "trees", "types"},
    "data": {"disk", "errors", "keyed", "native", "place", "types"},
    "engines": {"calculus", "convolution", "data", "errors", "keyed", "models", "native", "task", "trees", "types"},
    "analysis": {"calculus", "data", "errors", "keyed", "task", "trees", "types"},
    "run": {
        "analysis",
        "convolution",
        "data",
        "disk",
        "engines",
        "errors",
        "keyed",
        "losses",
        "methods",
        "models",
        "optim",
        "purity",
        "task",
        "trees",
        "types",
    },
    "cli": {"disk", "errors", "run"},
    "__main__": {"cli"},
}
FILES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


def imported(path: Path) -> set[str]:
    """The full names of everything in fedtailor that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively; write the full name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "fedtailor"}


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_rooms_below_it(path: Path) -> None:
    rooms = {name.split(".")[1] for name in imported(path) if "." in name} - {room(path)}
    assert rooms <= BELOW[room(path)]


def test_the_arrows_have_no_cycle() -> None:
    done: set[str] = set()
    while len(done) < len(BELOW):
        ready = {name for name, below in BELOW.items() if below <= done} - done
        assert ready
        done |= ready


MADE_OF = {
    "server_learning": set[str](),
    "personal_layers": {"server_learning"},
    "fsl": {"server_learning"},
    "fsl_p": {"fsl", "server_learning"},
    "ds": {"fedavg"},
    "fedper": {"fedavg", "personal_layers"},
    "lg_fedavg": {"fedavg", "personal_layers"},
    "fedrep": {"personal_layers"},
    "fedmeta_per": {"fedmeta", "personal_layers"},
    "composed": {"ds", "personal_layers", "server_learning"},
    "__init__": {"composed"},
}
"""Wrappers, and the methods that are made with them; no other method knows of another."""


def test_methods_do_not_import_each_other() -> None:
    for path in (ROOT / "methods").glob("*.py"):
        others = {name.split(".")[2] for name in imported(path) if name.startswith("fedtailor.methods.")}
        assert others - {"pieces"} <= MADE_OF.get(path.stem, set()), path.name


def test_engines_know_no_method_by_name() -> None:
    from fedtailor.methods import NAMES

    for path in (ROOT / "engines").rglob("*.py"):
        words = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert not words & set(NAMES), path.name


def test_nothing_seeds_or_draws_globally() -> None:
    for path in FILES:
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        called = {ast.unparse(call) for call in calls}
        assert not called & {
            "torch.manual_seed",
            "np.random.seed",
            "random.seed",
            "torch.rand",
            "torch.randn",
            "torch.randperm",
        }
