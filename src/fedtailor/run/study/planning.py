"""From a study to what will be run: its parts' comparisons at a scale, one for each varied value, and their folders.

Words lie over a comparison's file in this order: those of [parts.tune] while something is chosen, of [parts.quick], of
[parts.embedded], the user's, and the varied one.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedtailor import data as sources
from fedtailor.errors import InputError, require
from fedtailor.run.commands import word_of
from fedtailor.run.spec import Comparison, gathered, read_comparison, read_toml
from fedtailor.run.study.reading import Part, Scalar, Study, Vary, words_of

Scale = Literal["quick", "paper"]
SCALES: tuple[Scale, ...] = ("quick", "paper")
TUNED = "tune"
"""The folder of a part's trials."""

Chosen = Mapping[str, Mapping[str, Any]]
"""Values of hyper-parameters that validation clients have chosen, for each method."""


class Asked(NamedTuple):
    """What somebody wants of a study."""

    study: Study
    scale: Scale = "quick"
    words: tuple[str, ...] = ()


class Scenario(NamedTuple):
    """A comparison that is to be run: a part at one of its values."""

    part: Part
    value: Scalar | None
    comparison: Comparison
    place: Path

    @property
    def name(self) -> str:
        """What it is called where it is told of."""
        return self.part.name if self.value is None else f"{self.part.name} {word_of(self.value)}"


class Planned(NamedTuple):
    """A part that is to be run, and whether other data stand in for its own."""

    part: Part
    vary: Vary | None
    embedded: bool
    note: str  # what is to be said of it


def plan(asked: Asked, names: Sequence[str] = ()) -> tuple[list[Planned], list[str]]:
    """The parts that will be run, all or those named, and what is said of the others."""
    for name in names:
        asked.study.part(name)
    parts = [part for part in asked.study.parts if not names or part.name in names]
    planned, left_out = [], []
    for part in parts:
        missing = _missing(read(asked, part))
        if not missing:
            planned.append(Planned(part, vary_of(asked, part, False), False, ""))
            continue
        add = f"`fedtailor data add {missing}`"
        no_way = f"{part.name}: data set '{missing}' is not in the store; add it with {add}."
        require(asked.scale == "quick", no_way)
        if part.embedded is None:
            left_out.append(f"{part.name}: left out, for data set '{missing}' is not in the store; add it with {add}.")
            continue
        instead = read(asked, part, embedded=True).data
        note = f"{part.name}: data set '{missing}' is not in the store ({add}); {instead} stands in."
        planned.append(Planned(part, vary_of(asked, part, True), True, note))
    return planned, left_out


def scenarios(asked: Asked, planned: Planned, out: Path, chosen: Chosen | None = None) -> list[Scenario]:
    """A part's comparisons, one for each varied value."""
    part, vary, embedded, _ = planned
    here = out / part.name
    if vary is None:
        return [Scenario(part, None, _with(read(asked, part, embedded), chosen or {}, ""), here)]
    made = []
    for value in vary.values:
        word = f"{vary.key}={word_of(value)}"
        comparison = _with(read(asked, part, embedded, (word,)), chosen or {}, vary.key)
        made.append(Scenario(part, value, comparison, here / word_of(value).replace("/", "_").strip('"')))
    places = {scenario.place for scenario in made}
    require(
        len(places) == len(made), f"{part.name}: varied values must differ, got {', '.join(map(str, vary.values))}."
    )
    return made


def tuning_of(asked: Asked, planned: Planned) -> Comparison | None:
    """The comparison whose hyper-parameters are chosen before a part is run; None where nothing is chosen."""
    if planned.part.tune is None:
        return None
    return read(asked, planned.part, planned.embedded, tuning=True)


def read(
    asked: Asked, part: Part, embedded: bool = False, last: Iterable[str] = (), tuning: bool = False
) -> Comparison:
    """A part's comparison with everything that lies over it, baselines included."""
    quick = asked.scale == "quick"
    words = words_of(part.tune or {}) if tuning else []
    words += ["seeds=0", *_words(part.quick)] if quick else []
    words += _words(part.embedded or {}) if embedded else []
    words += [f"target={part.target}"] if part.target is not None else []
    base = read_toml(asked.study.file_of(part))
    if embedded and "data" in (part.embedded or {}):
        base.pop("data_options", None)  # they are those of another data set
        words = [word for word in words if not word.startswith("data.")] + [
            word for word in _words(part.embedded or {}) if word.startswith("data.")
        ]
    try:
        of_study = gathered(words, Comparison, base)  # like a file it may speak of methods that are not asked for
        return read_comparison([*asked.words, *last], of_study).with_baselines()
    except InputError as problem:
        raise InputError(f"{asked.study.name}, part {part.name}: {problem}") from None


def _words(table: dict[str, Any]) -> list[str]:
    return words_of({key: value for key, value in table.items() if key != "vary"})


def vary_of(asked: Asked, part: Part, embedded: bool) -> Vary | None:
    """What varies: as the part says, with what is said otherwise of it at a smaller scale."""
    if part.vary is None:
        return None
    smaller = part.quick.get("vary", {}) if asked.scale == "quick" else {}
    instead = (part.embedded or {}).get("vary", {}) if embedded else {}
    return Vary.model_validate(part.vary.model_dump() | smaller | instead)


def _missing(comparison: Comparison) -> str:
    """The first data set that a comparison needs and that has not been added; "" if all are there."""
    needed = (comparison.data, str(comparison.data_options.get("server_set", "")))
    return next((name for name in needed if name in sources.KNOWN and name not in sources.installed()), "")


def _with(comparison: Comparison, chosen: Chosen, varied: str) -> Comparison:
    """The comparison with what was chosen, but for the hyper-parameter that varies."""
    if not chosen:
        return comparison
    hyper, own = dict(comparison.hyper), {}
    for word, point in chosen.items():
        kept = {key: value for key, value in point.items() if varied not in (key, f"{word}.{key}")}
        hyper[word] = {**hyper.get(word, {}), **kept}
        own[word] = kept
    return comparison.model_copy(update={"hyper": hyper, "chosen": own})
