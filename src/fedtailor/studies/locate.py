"""Finding studies: in ./studies, in the checkout that fedtailor runs from, or in the package."""

from pathlib import Path

import fedtailor
from fedtailor.errors import require, suggest_name
from fedtailor.studies.config import STUDY_FILE, Study, read_study

PACKAGE_DIR = Path(fedtailor.__file__).parent


def list_study_roots() -> list[Path]:
    """Return the folders that may hold studies, in the order in which they are searched."""
    return [Path("studies"), get_checkout_studies(), PACKAGE_DIR / "_studies"]


def get_checkout_studies() -> Path:
    """Return the folder of studies of the checkout; without a checkout it does not exist."""
    return PACKAGE_DIR.parents[1] / "studies"


def find_studies() -> dict[str, Path]:
    """Return the folders of all studies by name, from the first root that holds any."""
    for root in list_study_roots():
        studies = {path.parent.name: path.parent for path in sorted(root.glob(f"*/{STUDY_FILE}"))}
        if studies:
            return studies
    return {}


def load_study(name: str) -> Study:
    """Return a study by its name."""
    studies = find_studies()
    roots = ", ".join(f"'{root}'" for root in list_study_roots())
    require(bool(studies), f"There are no studies: none of the folders {roots} holds one.")
    require(name in studies, f"There is no study '{name}'; {suggest_name(name, studies)}")
    return read_study(studies[name])


def is_writable(study: Study) -> bool:
    """Return whether a study is in a checkout, not in an installed package."""
    checkout = study.folder.resolve().parents[1]
    return (checkout / "pyproject.toml").is_file()
