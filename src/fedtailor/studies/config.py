"""What a study is: `study.toml` beside the comparisons that it runs, typed, with a sentence for whatever is wrong."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedtailor.errors import InputError, require, suggest_name
from fedtailor.training.command_lines import format_value
from fedtailor.training.overrides import read_toml

STUDY_FILE = "study.toml"
COLUMNS = ("participating before", "participating after", "unseen before", "unseen after")
"""Whose figures there are, and when."""
STATISTICS = ("micro", "macro", "std", "worst tenth")
"""Over clients: the mean over their examples, over themselves, the standard deviation, the mean of the worst tenth."""

Scalar = bool | int | float | str
Published = float | list[float] | dict[str, float]
"""A number; one for each varied value; or one for each column."""


class Vary(BaseModel):
    """A key of a comparison, and the values that it is run with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    values: tuple[Scalar, ...] = Field(min_length=1)


class Part(BaseModel):
    """One comparison of a study: how it is shown, what is known of it, and how it is made smaller."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
    title: str
    minutes: Annotated[float, Field(gt=0)] | None = None  # of a GPU at paper scale
    measured: bool = False  # whether they were, or are an estimate
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
        """Whose figure is shown in sweeps and curves, and when."""
        return " ".join(self.headline.split()[:2])

    @property
    def statistic(self) -> str:
        """Which figure over the clients of a group."""
        return " ".join(self.headline.split()[2:])


class Study(BaseModel):
    """A question and the comparisons that answer it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    question: str
    parts: tuple[Part, ...] = Field(min_length=1)
    documents: tuple[str, ...] = ()  # of the checkout that show its tables besides README.md
    folder: Path = Path()

    @property
    def name(self) -> str:
        """What it is called: its folder."""
        return self.folder.name

    def get_part(self, name: str) -> Part:
        """A part by its name."""
        known = {part.name: part for part in self.parts}
        require(
            name in known,
            f"study {self.name}: there is no part '{name}'; {suggest_name(name, known)}",
        )
        return known[name]

    def get_comparison_path(self, part: Part) -> Path:
        """The comparison of a part."""
        return self.folder / f"{part.name}.toml"

    def get_record_path(self, part: Part) -> Path:
        """Where the record of a part at paper scale is, if it has been made."""
        return self.folder / f"{part.name}.json"


def read_study(folder: Path) -> Study:
    """The study in a folder, checked as far as that can be done without reading its comparisons."""
    path = folder / STUDY_FILE
    try:
        study = Study.model_validate(read_toml(path) | {"folder": folder})
    except ValidationError as problem:
        raise InputError(f"'{path}': {_describe_error(problem)}") from None
    names = [part.name for part in study.parts]
    require(
        len({*names}) == len(names),
        f"'{path}': parts must have different names, got {', '.join(names)}.",
    )
    for part in study.parts:
        _check_part(part, f"'{path}', part {part.name}")
        require(
            study.get_comparison_path(part).is_file(),
            f"'{path}': part {part.name} needs the file '{study.get_comparison_path(part)}'.",
        )
    return study


def format_overrides(table: dict[str, Any], prefix: str = "") -> list[str]:
    """A table as words of a command line; tables in it are keys with dots."""
    overrides = []
    for key, value in table.items():
        is_table = isinstance(value, dict)
        overrides += (
            format_overrides(value, f"{prefix}{key}.")
            if is_table
            else [f"{prefix}{key}={format_value(value)}"]
        )
    return overrides


def _check_part(part: Part, location: str) -> None:
    """Refuses what does not go together."""
    require(
        part.column in COLUMNS,
        f"{location}: headline must begin with one of {', '.join(COLUMNS)}, got '{part.headline}'.",
    )
    is_known = part.statistic in STATISTICS
    require(
        is_known,
        f"{location}: headline must end with one of {', '.join(STATISTICS)}, got '{part.headline}'.",
    )
    require(
        "sweep" not in part.tables or part.vary is not None,
        f"{location}: to show a sweep, name what varies ([parts.vary]).",
    )
    for method, numbers in part.published.items():
        if isinstance(numbers, list):
            wanted = len(part.vary.values) if part.vary else 0
            has_all_numbers = len(numbers) == wanted
            require(
                has_all_numbers,
                f"{location}: published.{method} has {len(numbers)} numbers for {wanted} varied values.",
            )
        elif isinstance(numbers, dict):
            for column in numbers:
                require(
                    column in COLUMNS,
                    f"{location}: published.{method} has no column '{column}'; {suggest_name(column, COLUMNS)}",
                )


def _describe_error(problem: ValidationError) -> str:
    """What is wrong first, and where."""
    first = problem.errors()[0]
    where = ".".join(str(step) for step in first["loc"])
    if first["type"] == "extra_forbidden":
        known = Study.model_fields if len(first["loc"]) == 1 else Part.model_fields
        return f"there is no key '{where}'; {suggest_name(str(first['loc'][-1]), known)}"
    if first["type"] == "missing":
        return f"{where} is missing."
    return f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}, got {first['input']!r}."
