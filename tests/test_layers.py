"""Arrows point one way: what each room may import, read from the source."""

import ast
import re
from pathlib import Path

import pytest

import fedtailor

ROOT = Path(fedtailor.__file__).parent
BELOW = {
    "errors": set(),
    "compat": {"errors"},
    "storage": {"errors"},
    "ops": {"compat", "errors", "storage"},
    "prng": {"compat", "errors", "ops"},
    "core": {"compat", "errors", "ops", "prng"},
    "models": {"compat", "ops"},
    "methods": {"core", "errors", "prng"},
    "data": {"core", "errors", "prng", "storage"},
    "compiler": {"compat", "core", "data", "ops", "prng"},
    "engines": {"compat", "compiler", "core", "data", "errors", "models", "ops", "prng"},
    "evaluation": {"core", "data", "engines", "errors", "ops", "prng"},
    "training": {
        "core",
        "data",
        "engines",
        "errors",
        "evaluation",
        "methods",
        "models",
        "ops",
        "prng",
        "storage",
    },
    "personalization": {
        "core",
        "data",
        "engines",
        "errors",
        "methods",
        "ops",
        "prng",
        "storage",
        "training",
    },
    "inspection": {
        "core",
        "data",
        "engines",
        "errors",
        "evaluation",
        "methods",
        "ops",
        "training",
    },
    "reporting": {"data", "errors", "evaluation", "storage", "training"},
    "experiments": {"data", "engines", "errors", "evaluation", "storage", "training"},
    "studies": {"data", "errors", "evaluation", "experiments", "reporting", "storage", "training"},
    "api": {"core", "data", "engines", "errors", "evaluation", "personalization", "training"},
    "cli": {
        "core",
        "data",
        "errors",
        "experiments",
        "inspection",
        "methods",
        "models",
        "personalization",
        "reporting",
        "storage",
        "studies",
        "training",
    },
    "__main__": {"cli"},
}
"""What each room may import, at module level and inside functions."""
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


def test_a_file_imports_only_rooms_below_it() -> None:
    forbidden = {}
    for path in FILES:
        rooms = {name.split(".")[1] for name in imported(path) if "." in name} - {room(path)}
        forbidden[path.relative_to(ROOT).as_posix()] = rooms - BELOW[room(path)]
    assert not {path: rooms for path, rooms in forbidden.items() if rooms}


def test_the_arrows_have_no_cycle() -> None:
    done: set[str] = set()
    while len(done) < len(BELOW):
        ready = {name for name, below in BELOW.items() if below <= done} - done
        assert ready
        done |= ready


MADE_OF = {
    "server_learning": set[str](),
    "personal_layers": set[str](),
    "fsl": {"server_learning"},
    "fsl_p": {"fsl", "server_learning"},
    "ds": {"fedavg"},
    "fedper": {"fedavg", "personal_layers"},
    "lg_fedavg": {"fedavg", "personal_layers"},
    "fedrep": {"personal_layers"},
    "fedmeta_per": {"fedmeta", "personal_layers"},
    "composition": {"ds", "personal_layers", "server_learning"},
    "__init__": {"composition"},
}
"""Wrappers, and the methods that are made with them; no other method knows of another."""


def test_methods_do_not_import_each_other() -> None:
    for path in (ROOT / "methods").rglob("*.py"):
        names = [name.removeprefix("fedtailor.methods.") for name in imported(path)]
        others = {
            name.removeprefix("wrappers.").split(".")[0]
            for name in names
            if not name.startswith("fedtailor.")
        }
        assert others - {"hparams", "local_training"} <= MADE_OF.get(path.stem, set()), path.name


def test_engines_know_no_method_by_name() -> None:
    from fedtailor.methods import NAMES

    for path in (ROOT / "engines").rglob("*.py"):
        words = {
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant)
        }
        assert not words & set(NAMES), path.name


PRIVATE = re.compile(
    r"\btorch(\.\w+)*\._(?!_)"  # torch._C, torch.utils._pytree, torch.ops.aten._thnn_fused_gru
    r"|\b(nn|nnf|functional)(\.\w+)*\._(?!_)"
    r"|\bfrom torch[.\w]* import .*\b_(?!_)\w"
    r"|torch\.fx\.experimental|from torch\.fx import experimental"
    r"|\b(_pytree|_python_dispatch|_inductor|_dynamo\w*|_foreach_\w+|_thnn\w*|_BatchNorm|_cdata)\b"
    r"|(?<!\bself)\._(parameters|buffers|modules)\b"
    r"|\._schema\b|\bmake_fx\b|\bget_proxy_mode\b|\bTorchDispatchMode\b|\bFakeTensorMode\b"
    r"|torch\.__version__ *[<>=!]|filterwarnings|simplefilter|catch_warnings"
)
"""What torch keeps to itself, its versions where they decide something, and filters for its
warnings.
"""
DOOR = "compat/torch_internals.py"


def find_private(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if PRIVATE.search(line)]


def test_what_torch_keeps_to_itself_is_behind_one_door() -> None:
    found = {path.relative_to(ROOT).as_posix(): find_private(path.read_text()) for path in FILES}
    assert found.pop(DOOR)
    assert not {path: lines for path, lines in found.items() if lines}


@pytest.mark.parametrize(
    "line",
    [
        "    if torch._C._functorch.peek_interpreter_stack() is None:",
        "from torch._guards import TracingContext",
        "import torch._inductor",
        "from torch import _foreach_add",
        "from torch import Tensor, _C",
        "from torch.utils._pytree import tree_leaves",
        "from torch.utils import _pytree as pytree",
        "from torch.utils._python_dispatch import TorchDispatchMode",
        "from torch.fx.experimental.proxy_tensor import make_fx",
        "from torch.fx import experimental",
        "from torch.nn.modules.batchnorm import _BatchNorm",
        "isinstance(module, nn.modules.batchnorm._BatchNorm)",
        "torch.ops.aten._thnn_fused_lstm_cell(*rows)",
        "storage._cdata",
        "for name, child in module._modules.items():",
        "for tensors in (owner._parameters, self.owner._buffers):",
        "itself._buffers",
        "function._dynamo_marked_constant = True",
        'if torch.__version__ >= "2.13":',
        'warnings.filterwarnings("ignore", message, UserWarning)',
    ],
)
def test_the_door_is_watched(line: str) -> None:
    assert find_private(line)


@pytest.mark.parametrize(
    "line",
    [
        "from torch.nn import functional as nnf",
        "torch.ops.aten.add.Tensor",
        '"torch": torch.__version__,',
        "torch.__dict__",
        "self._torch._cache",
        "self._buffers = self._make_buffers()",
    ],
)
def test_the_door_is_not_in_the_way(line: str) -> None:
    assert not find_private(line)


def test_the_door_hands_out_nothing_of_torch() -> None:
    from fedtailor.compat import torch_internals

    used = {
        name.removeprefix("fedtailor.compat.torch_internals.")
        for path in FILES
        for name in imported(path)
        if name.startswith("fedtailor.compat")
    }
    assert used
    for name in used:
        assert getattr(torch_internals, name).__module__ == torch_internals.__name__, name


def test_nothing_seeds_or_draws_globally() -> None:
    for path in FILES:
        calls = [
            node.func
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
        ]
        called = {ast.unparse(call) for call in calls}
        assert not called & {
            "torch.manual_seed",
            "np.random.seed",
            "random.seed",
            "torch.rand",
            "torch.randn",
            "torch.randperm",
        }
