"""From a study to what will be run: its parts' comparisons at a scale, one for each varied value, and their folders.

Words lie over a comparison's file in this order: those of [parts.tune] while something is chosen, of [parts.quick], of
[parts.embedded], the user's, and the varied one.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedtailor import data as sources
from fedtailor.errors import InputError, require
from fedtailor.studies.config import Part, Scalar, Study, Vary, format_overrides
from fedtailor.training.command_lines import format_value
from fedtailor.training.config import ComparisonConfig
from fedtailor.training.overrides import parse_overrides, read_comparison, read_toml

Scale = Literal["quick", "paper"]
SCALES: tuple[Scale, ...] = ("quick", "paper")
TUNING_DIR = "tune"
"""The folder of a part's trials."""

TunedHParams = Mapping[str, Mapping[str, Any]]
"""Values of hyper-parameters that validation clients have chosen, for each method."""


class StudyRequest(NamedTuple):
    """What somebody wants of a study."""

    study: Study
    scale: Scale = "quick"
    overrides: tuple[str, ...] = ()


class Scenario(NamedTuple):
    """A comparison that is to be run: a part at one of its values."""

    part: Part
    value: Scalar | None
    comparison: ComparisonConfig
    path: Path

    @property
    def name(self) -> str:
        """What it is called where it is told of."""
        return (
            self.part.name if self.value is None else f"{self.part.name} {format_value(self.value)}"
        )


class PlannedPart(NamedTuple):
    """A part that is to be run, and whether other data stand in for its own."""

    part: Part
    vary: Vary | None
    is_embedded: bool
    note: str  # what is to be said of it


def plan_study(
    request: StudyRequest, names: Sequence[str] = ()
) -> tuple[list[PlannedPart], list[str]]:
    """The parts that will be run, all or those named, and what is said of the others."""
    for name in names:
        request.study.get_part(name)
    parts = [part for part in request.study.parts if not names or part.name in names]
    planned_parts, skipped = [], []
    for part in parts:
        missing = _find_missing_dataset(read_part_comparison(request, part))
        if not missing:
            planned_parts.append(PlannedPart(part, resolve_vary(request, part, False), False, ""))
            continue
        add = f"`fedtailor data add {missing}`"
        message = f"{part.name}: data set '{missing}' is not in the store; add it with {add}."
        require(request.scale == "quick", message)
        if part.embedded is None:
            skipped.append(
                f"{part.name}: left out, for data set '{missing}' is not in the store; add it with {add}."
            )
            continue
        instead = read_part_comparison(request, part, is_embedded=True).data
        note = (
            f"{part.name}: data set '{missing}' is not in the store ({add}); {instead} stands in."
        )
        planned_parts.append(PlannedPart(part, resolve_vary(request, part, True), True, note))
    return planned_parts, skipped


def make_scenarios(
    request: StudyRequest, planned_part: PlannedPart, out: Path, tuned: TunedHParams | None = None
) -> list[Scenario]:
    """A part's comparisons, one for each varied value."""
    part, vary, is_embedded, _ = planned_part
    part_dir = out / part.name
    if vary is None:
        return [
            Scenario(
                part,
                None,
                _apply_tuned(read_part_comparison(request, part, is_embedded), tuned or {}, ""),
                part_dir,
            )
        ]
    scenarios = []
    for value in vary.values:
        override = f"{vary.key}={format_value(value)}"
        comparison = _apply_tuned(
            read_part_comparison(request, part, is_embedded, (override,)), tuned or {}, vary.key
        )
        scenarios.append(
            Scenario(
                part, value, comparison, part_dir / format_value(value).replace("/", "_").strip('"')
            )
        )
    paths = {scenario.path for scenario in scenarios}
    require(
        len(paths) == len(scenarios),
        f"{part.name}: varied values must differ, got {', '.join(map(str, vary.values))}.",
    )
    return scenarios


def make_tuning_comparison(
    request: StudyRequest, planned_part: PlannedPart
) -> ComparisonConfig | None:
    """The comparison whose hyper-parameters are chosen before a part is run; None where nothing is chosen."""
    if planned_part.part.tune is None:
        return None
    return read_part_comparison(
        request, planned_part.part, planned_part.is_embedded, is_tuning=True
    )


def read_part_comparison(
    request: StudyRequest,
    part: Part,
    is_embedded: bool = False,
    last_overrides: Iterable[str] = (),
    is_tuning: bool = False,
) -> ComparisonConfig:
    """A part's comparison with everything that lies over it, baselines included."""
    is_quick = request.scale == "quick"
    overrides = format_overrides(part.tune or {}) if is_tuning else []
    overrides += ["seeds=0", *_format_part_overrides(part.quick)] if is_quick else []
    overrides += _format_part_overrides(part.embedded or {}) if is_embedded else []
    overrides += [f"target={part.target}"] if part.target is not None else []
    base = read_toml(request.study.get_comparison_path(part))
    if is_embedded and "data" in (part.embedded or {}):
        base.pop("data_options", None)  # they are those of another data set
        overrides = [override for override in overrides if not override.startswith("data.")] + [
            override
            for override in _format_part_overrides(part.embedded or {})
            if override.startswith("data.")
        ]
    try:
        values = parse_overrides(
            overrides, ComparisonConfig, base
        )  # like a file it may speak of methods that are not asked for
        return read_comparison([*request.overrides, *last_overrides], values).add_baselines()
    except InputError as problem:
        raise InputError(f"{request.study.name}, part {part.name}: {problem}") from None


def _format_part_overrides(table: dict[str, Any]) -> list[str]:
    return format_overrides({key: value for key, value in table.items() if key != "vary"})


def resolve_vary(request: StudyRequest, part: Part, is_embedded: bool) -> Vary | None:
    """What varies: as the part says, with what is said otherwise of it at a smaller scale."""
    if part.vary is None:
        return None
    smaller = part.quick.get("vary", {}) if request.scale == "quick" else {}
    instead = (part.embedded or {}).get("vary", {}) if is_embedded else {}
    return Vary.model_validate(part.vary.model_dump() | smaller | instead)


def _find_missing_dataset(comparison: ComparisonConfig) -> str:
    """The first data set that a comparison needs and that has not been added; "" if all are there."""
    needed = (comparison.data, str(comparison.data_options.get("server_set", "")))
    return next(
        (
            name
            for name in needed
            if name in sources.CATALOG and name not in sources.list_installed()
        ),
        "",
    )


def _apply_tuned(
    comparison: ComparisonConfig, tuned: TunedHParams, varied_key: str
) -> ComparisonConfig:
    """The comparison with what was chosen, but for the hyper-parameter that varies."""
    if not tuned:
        return comparison
    hparams, tuned_by_variant = dict(comparison.hparams), {}
    for variant, point in tuned.items():
        kept = {
            key: value
            for key, value in point.items()
            if varied_key not in (key, f"{variant}.{key}")
        }
        hparams[variant] = {**hparams.get(variant, {}), **kept}
        tuned_by_variant[variant] = kept
    return comparison.model_copy(update={"hparams": hparams, "tuned": tuned_by_variant})
