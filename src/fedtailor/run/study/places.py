"""Where studies are: in ./studies, in the checkout that fedtailor is run from, or in the installed package."""

from pathlib import Path

import fedtailor
from fedtailor.errors import nearest, require
from fedtailor.run.study.reading import FILE, Study, read_study

PACKAGE = Path(fedtailor.__file__).parent


def places() -> list[Path]:
    """The folders that may hold studies, the nearest first."""
    return [Path("studies"), checkout(), PACKAGE / "_studies"]


def checkout() -> Path:
    """The studies of the checkout that fedtailor is run from, if it is run from one."""
    return PACKAGE.parents[1] / "studies"


def found() -> dict[str, Path]:
    """The studies there are, in the first place that holds any."""
    for place in places():
        studies = {path.parent.name: path.parent for path in sorted(place.glob(f"*/{FILE}"))}
        if studies:
            return studies
    return {}


def study_named(name: str) -> Study:
    """A study by its name."""
    known = found()
    where = ", ".join(f"'{place}'" for place in places())
    require(bool(known), f"There are no studies: none of the folders {where} holds one.")
    require(name in known, f"There is no study '{name}'; {nearest(name, known)}")
    return read_study(known[name])


def writable(study: Study) -> bool:
    """Whether records of a study are kept by version control, and not those of an installed package."""
    return (study.folder.resolve().parents[1] / "pyproject.toml").is_file()
