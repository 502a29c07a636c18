import subprocess
import sys
from types import ModuleType

import fedtailor

PUBLIC = [
    "DivergedError",
    "Engine",
    "FederatedDataset",
    "FedtailorError",
    "FitResult",
    "InputError",
    "Method",
    "PersonalModel",
    "RoutineError",
    "Task",
    "classification",
    "digits",
    "fit",
    "from_arrays",
    "multilabel",
    "regression",
    "sequences",
    "synthetic",
    "with_group_norm",
]


def test_the_public_names_are_these() -> None:
    assert fedtailor.__all__ == PUBLIC
    assert dir(fedtailor) == PUBLIC


def test_every_public_name_is_there_and_has_a_docstring() -> None:
    for name in PUBLIC:
        found = getattr(fedtailor, name)
        assert not isinstance(found, ModuleType), name
        assert found.__doc__, name


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, fedtailor, fedtailor.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
