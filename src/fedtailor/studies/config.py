"""The configuration of a study: `study.toml`, typed, with a sentence for the first error in it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedtailor.errors import InputError, require, suggest_name
from fedtailor.training.overrides import read_toml
from fedtailor.training.shell_commands import format_value

STUDY_FILE = "study.toml"
COLUMNS = ("participating before", "participating after", "unseen before", "unseen after")
"""Columns of tables: a group of clients, before or after personalizing."""
STATISTICS = ("micro", "macro", "std", "worst tenth")
"""Statistics over the clients of a group.

They are the mean weighted by examples, the plain mean, the standard deviation, and the mean of the
worst tenth.
"""

Scalar = bool | int | float | str
Published = float | list[float] | dict[str, float]
"""Published figures of a method: one, one for each varied value, or one for each column."""


class Vary(BaseModel):
    """A key of a comparison, and the values that the comparison is run with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    values: tuple[Scalar, ...] = Field(min_length=1)


class Part(BaseModel):
    """One comparison of a study: its tables, published figures, and smaller scales.

    `quick`, `embedded` and `tune` are tables of overrides: at scale=quick, where embedded data
    replace a missing data set, and for the trials that choose hyper-parameters first.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
    title: str
    minutes: Annotated[float, Field(gt=0)] | None = None  # of a GPU at paper scale
    is_measured: bool = False  # whether `minutes` were measured, or are an estimate
    headline: str = "participating after micro"
    tables: tuple[Literal["accuracy", "sweep", "speed", "overview"], ...] = ("accuracy",)
    published: dict[str, Published] = {}
    target: float | None = None
    vary: Vary | None = None
    quick: dict[str, Any] = {}
    embedded: dict[str, Any] | None = None
    tune: dict[str, Any] | None = None

    @property
    def column(self) -> str:
        """The column of the headline, which sweeps and curves show."""
        return " ".join(self.headline.split()[:2])

    @property
    def statistic(self) -> str:
        """The statistic of the headline, which all tables show."""
        return " ".join(self.headline.split()[2:])


class Study(BaseModel):
    """A question, and the comparisons that answer it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    question: str
    parts: tuple[Part, ...] = Field(min_length=1)
    documents: tuple[str, ...] = ()  # in the checkout, with its tables, besides its README.md
    folder: Path = Path()

    @property
    def name(self) -> str:
        """The name of the study's folder."""
        return self.folder.name

    def get_part(self, name: str) -> Part:
        """Return a part by its name."""
        parts = {part.name: part for part in self.parts}
        require(
            name in parts,
            f"study {self.name}: there is no part '{name}'; {suggest_name(name, parts)}",
        )
        return parts[name]

    def get_comparison_path(self, part: Part) -> Path:
        """Return the file of a part's comparison."""
        return self.folder / f"{part.name}.toml"

    def get_record_path(self, part: Part) -> Path:
        """Return the file of a part's record at paper scale, which need not exist yet."""
        return self.folder / f"{part.name}.json"


def read_study(folder: Path) -> Study:
    """Return the study in a folder, checked as far as possible without reading its comparisons."""
    path = folder / STUDY_FILE
    try:
        study = Study.model_validate(read_toml(path) | {"folder": folder})
    except ValidationError as problem:
        raise InputError(f"'{path}': {_describe_error(problem)}") from None
    names = [part.name for part in study.parts]
    require(
        len(set(names)) == len(names),
        f"'{path}': parts must have different names, got {', '.join(names)}.",
    )
    for part in study.parts:
        _check_part(part, f"'{path}', part {part.name}")
        comparison_path = study.get_comparison_path(part)
        require(
            comparison_path.is_file(),
            f"'{path}': part {part.name} needs the file '{comparison_path}'.",
        )
    return study


def format_overrides(table: dict[str, Any], prefix: str = "") -> list[str]:
    """Return a table as KEY=VALUE arguments of a command; keys of inner tables get dots."""
    overrides = []
    for key, value in table.items():
        if isinstance(value, dict):
            overrides += format_overrides(value, f"{prefix}{key}.")
        else:
            overrides.append(f"{prefix}{key}={format_value(value)}")
    return overrides


def _check_part(part: Part, location: str) -> None:
    """Raise an error for fields that contradict each other; messages begin with `location`."""
    require(
        part.column in COLUMNS,
        f"{location}: headline must begin with one of {', '.join(COLUMNS)}, got '{part.headline}'.",
    )
    require(
        part.statistic in STATISTICS,
        f"{location}: headline must end with one of {', '.join(STATISTICS)}, "
        f"got '{part.headline}'.",
    )
    require(
        "sweep" not in part.tables or part.vary is not None,
        f"{location}: to show a sweep, name what varies ([parts.vary]).",
    )
    num_values = len(part.vary.values) if part.vary else 0
    for method, figures in part.published.items():
        if isinstance(figures, list):
            require(
                len(figures) == num_values,
                f"{location}: published.{method} has {len(figures)} numbers "
                f"for {num_values} varied values.",
            )
        elif isinstance(figures, dict):
            _check_columns(figures, f"{location}: published.{method}")


def _check_columns(columns: Iterable[str], location: str) -> None:
    for column in columns:
        hint = suggest_name(column, COLUMNS)
        require(column in COLUMNS, f"{location} has no column '{column}'; {hint}")


def _describe_error(problem: ValidationError) -> str:
    """Return a sentence on the first error of a validation."""
    error = problem.errors()[0]
    steps = error["loc"]
    location = ".".join(str(step) for step in steps)
    if error["type"] == "extra_forbidden":
        fields = Study.model_fields if len(steps) == 1 else Part.model_fields
        return f"there is no key '{location}'; {suggest_name(str(steps[-1]), fields)}"
    if error["type"] == "missing":
        return f"{location} is missing."
    reason = f"{error['msg'][0].lower()}{error['msg'][1:]}"
    return f"{location}: {reason}, got {error['input']!r}."
