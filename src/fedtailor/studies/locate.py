"""Where studies are: in ./studies, in the checkout that fedtailor is run from, or in the installed package."""

from pathlib import Path

import fedtailor
from fedtailor.errors import require, suggest_name
from fedtailor.studies.config import STUDY_FILE, Study, read_study

PACKAGE_DIR = Path(fedtailor.__file__).parent


def list_study_roots() -> list[Path]:
    """The folders that may hold studies, the nearest first."""
    return [Path("studies"), get_checkout_studies(), PACKAGE_DIR / "_studies"]


def get_checkout_studies() -> Path:
    """The studies of the checkout that fedtailor is run from, if it is run from one."""
    return PACKAGE_DIR.parents[1] / "studies"


def find_studies() -> dict[str, Path]:
    """The studies there are, in the first place that holds any."""
    for root in list_study_roots():
        studies = {path.parent.name: path.parent for path in sorted(root.glob(f"*/{STUDY_FILE}"))}
        if studies:
            return studies
    return {}


def load_study(name: str) -> Study:
    """A study by its name."""
    known = find_studies()
    where = ", ".join(f"'{root}'" for root in list_study_roots())
    require(bool(known), f"There are no studies: none of the folders {where} holds one.")
    require(name in known, f"There is no study '{name}'; {suggest_name(name, known)}")
    return read_study(known[name])


def is_writable(study: Study) -> bool:
    """Whether records of a study are kept by version control, and not those of an installed package."""
    return (study.folder.resolve().parents[1] / "pyproject.toml").is_file()
