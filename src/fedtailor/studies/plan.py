"""Planning a study: the comparisons of its parts at a scale, one for each varied value.

Overrides of a comparison's file apply in this order, the last one winning: those of [parts.tune]
for trials, of [parts.quick], of [parts.embedded], the user's, and the varied value.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedtailor import data as sources
from fedtailor.errors import InputError, require, require_distinct
from fedtailor.studies.config import Part, Scalar, Study, Vary, format_overrides
from fedtailor.training.config import ComparisonConfig
from fedtailor.training.overrides import parse_overrides, read_comparison, read_toml
from fedtailor.training.shell_commands import format_value

Scale = Literal["quick", "paper"]
SCALES: tuple[Scale, ...] = ("quick", "paper")
TUNING_DIR = "tune"
"""The folder of a part's trials."""

TunedHParams = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""Hyper-parameters that validation clients have chosen, by variant, seed of the data and name."""


class StudyRequest(NamedTuple):
    """A request of the user: a study, its scale, and overrides of its comparisons."""

    study: Study
    scale: Scale = "quick"
    overrides: tuple[str, ...] = ()  # KEY=VALUE


class PartScenario(NamedTuple):
    """A comparison to run: a part, at one of its varied values if something varies."""

    part: Part
    value: Scalar | None
    comparison: ComparisonConfig
    path: Path  # the folder of its runs

    @property
    def name(self) -> str:
        """The name of the part, followed by the varied value."""
        if self.value is None:
            return self.part.name
        return f"{self.part.name} {format_value(self.value)}"


class PlannedPart(NamedTuple):
    """A part that will be run."""

    part: Part
    vary: Vary | None
    is_embedded: bool  # whether embedded data replace a data set that has not been added
    note: str  # about that, for the user; "" if nothing is replaced


def plan_study(
    request: StudyRequest, names: Sequence[str] = ()
) -> tuple[list[PlannedPart], list[str]]:
    """Return the parts that will be run, and a message for each part that is skipped.

    Parts are skipped at scale=quick alone, if their data set has not been added and they name no
    embedded data; at scale=paper a missing data set is an error. `names` selects parts.
    """
    for name in names:
        request.study.get_part(name)  # refuses a name that does not exist
    planned_parts = []
    skipped = []
    for part in request.study.parts:
        if names and part.name not in names:
            continue
        missing = _find_missing_dataset(read_part_comparison(request, part))
        if not missing:
            planned_parts.append(PlannedPart(part, resolve_vary(request, part, False), False, ""))
            continue
        is_missing = f"data set '{missing}' is not in the store"
        command = f"`fedtailor data add {missing}`"
        require(request.scale == "quick", f"{part.name}: {is_missing}; add it with {command}.")
        if part.embedded is None:
            skipped.append(f"{part.name}: skipped because {is_missing}; add it with {command}.")
            continue
        embedded_data = read_part_comparison(request, part, is_embedded=True).data
        note = f"{part.name}: {is_missing} ({command}); using {embedded_data} instead."
        planned_parts.append(PlannedPart(part, resolve_vary(request, part, True), True, note))
    return planned_parts, skipped


def make_scenarios(
    request: StudyRequest, planned_part: PlannedPart, out: Path, tuned: TunedHParams | None = None
) -> list[PartScenario]:
    """Return the comparisons of a part, one for each varied value.

    Args:
        request: What the user asks for.
        planned_part: The part.
        out: The folder of the study's runs.
        tuned: Hyper-parameters that trials have chosen; None without trials.
    """
    part = planned_part.part
    vary = planned_part.vary
    part_dir = out / part.name
    if vary is None:
        comparison = read_part_comparison(request, part, planned_part.is_embedded)
        comparison = _apply_tuned(comparison, tuned or {}, "")
        return [PartScenario(part, None, comparison, part_dir)]
    require_distinct(f"{part.name}: {vary.key}", vary.values)
    scenarios = []
    for value in vary.values:
        value_text = format_value(value)
        override = f"{vary.key}={value_text}"
        comparison = read_part_comparison(request, part, planned_part.is_embedded, (override,))
        comparison = _apply_tuned(comparison, tuned or {}, vary.key)
        path = part_dir / value_text.replace("/", "_").strip('"')
        scenarios.append(PartScenario(part, value, comparison, path))
    num_paths = len({scenario.path for scenario in scenarios})
    require(
        num_paths == len(scenarios),
        f"{part.name}: varied values must differ, got {', '.join(map(str, vary.values))}.",
    )
    return scenarios


def make_tuning_comparison(
    request: StudyRequest, planned_part: PlannedPart
) -> ComparisonConfig | None:
    """Return the comparison of a part's trials, or None if it has none."""
    part = planned_part.part
    if part.tune is None:
        return None
    return read_part_comparison(request, part, planned_part.is_embedded, is_tuning=True)


def read_part_comparison(
    request: StudyRequest,
    part: Part,
    is_embedded: bool = False,
    last_overrides: Iterable[str] = (),
    is_tuning: bool = False,
) -> ComparisonConfig:
    """Return the comparison of a part with all overrides applied and baselines added.

    Args:
        request: What the user asks for.
        part: The part.
        is_embedded: Whether embedded data replace its data set.
        last_overrides: Overrides that win over all others.
        is_tuning: Whether the comparison is for trials.
    """
    base = read_toml(request.study.get_comparison_path(part))
    overrides = _list_overrides(request, part, is_embedded, is_tuning)
    if is_embedded and "data" in (part.embedded or {}):
        # Of the options of the replaced data set only the seed applies to the embedded one.
        options = base.pop("data_options", {})
        base["data_options"] = {key: options[key] for key in ("seed",) if key in options}
        embedded_overrides = _format_part_overrides(part.embedded or {})
        overrides = [override for override in overrides if not override.startswith("data.")]
        overrides += [override for override in embedded_overrides if override.startswith("data.")]
    try:
        # Parsed like a file, which may have hyper-parameters of methods that are not compared.
        values = parse_overrides(overrides, ComparisonConfig, base)
        user_overrides = [*request.overrides, *last_overrides]
        return read_comparison(user_overrides, values).add_baselines()
    except InputError as problem:
        raise InputError(f"{request.study.name}, part {part.name}: {problem}") from None


def _list_overrides(
    request: StudyRequest, part: Part, is_embedded: bool, is_tuning: bool
) -> list[str]:
    """Return the overrides that `study.toml` names for a part, in the order they apply."""
    overrides = []
    if is_tuning:
        overrides += format_overrides(part.tune or {})
    if request.scale == "quick":
        overrides.append("seeds=0")
        overrides += _format_part_overrides(part.quick)
    if is_embedded:
        overrides += _format_part_overrides(part.embedded or {})
    if part.target is not None:
        overrides.append(f"target={part.target}")
    return overrides


def _format_part_overrides(table: dict[str, Any]) -> list[str]:
    """Return a table as overrides, without `vary`, which is no key of a comparison."""
    return format_overrides({key: value for key, value in table.items() if key != "vary"})


def resolve_vary(request: StudyRequest, part: Part, is_embedded: bool) -> Vary | None:
    """Return what varies, with the changes that the part names for a smaller scale.

    Args:
        request: What the user asks for; at scale=quick the changes in `quick` apply.
        part: The part.
        is_embedded: Whether the changes in `embedded` apply.

    Returns:
        The key and its values, or None if nothing varies.
    """
    if part.vary is None:
        return None
    values = part.vary.model_dump()
    if request.scale == "quick":
        values |= part.quick.get("vary", {})
    if is_embedded:
        values |= (part.embedded or {}).get("vary", {})
    return Vary.model_validate(values)


def _find_missing_dataset(comparison: ComparisonConfig) -> str:
    """Return the first data set that a comparison needs and that is not installed; "" if none."""
    needed = (comparison.data, str(comparison.data_options.get("server_set", "")))
    for name in needed:
        if name in sources.CATALOG and name not in sources.list_installed():
            return name
    return ""


def _apply_tuned(
    comparison: ComparisonConfig, tuned: TunedHParams, varied_key: str
) -> ComparisonConfig:
    """Return the comparison with the chosen hyper-parameters, except the one that varies."""
    fixed: dict[str, dict[int, dict[str, Any]]] = {}
    for variant, points in tuned.items():
        varied_keys = (varied_key, varied_key.removeprefix(f"{variant}."))
        fixed[variant] = {}
        for data_seed, point in points.items():
            fixed_point = {key: value for key, value in point.items() if key not in varied_keys}
            fixed[variant][data_seed] = fixed_point
    return comparison.add_tuned(fixed)
