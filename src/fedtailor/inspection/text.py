"""An inspection as sentences, bars and JSON; every word follows from the numbers beside it."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedtailor.inspection.closeness import Closeness
from fedtailor.inspection.forecast import SMALL_GAIN, Estimate, StageForecast, Verdict
from fedtailor.inspection.inspect import HELPFUL, FractionForecast, Inspection
from fedtailor.inspection.statistics.fsl_conditions import Conditions
from fedtailor.inspection.workload import Workload

BAR_WIDTH = 21
"""Width of the axis that intervals are drawn on, in characters."""

NEAR_SHARE = 0.1
"""Share of the gain that a part of the server's data may lose and still do as well."""

STAGE_NAMES = {"before": "Before personalizing", "after": "After personalizing"}


# Before the trials


def describe_workload(workload: Workload, num_settings: int, num_rounds: int) -> str:
    """Return a sentence that says beforehand what is run, and how long that takes."""
    length = f"all {num_rounds:,} rounds"
    if workload.num_rounds < num_rounds:
        length = f"the first {workload.num_rounds:,} of {num_rounds:,} rounds"
    return (
        f"{num_settings} settings are tried with {length}, the best of them {workload.num_trials} "
        f"times: about {format_duration(workload.seconds)} on an idle core."
    )


def format_duration(seconds: float) -> str:
    """Return a duration in a unit that suits it.

    >>> format_duration(21.4), format_duration(200), format_duration(9000)
    ('21 seconds', '3.3 minutes', '2.5 hours')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.1f} minutes"
    return f"{seconds / 3600:.1f} hours"


# What was looked at


def describe_scope(inspection: Inspection) -> str:
    """Return sentences that say what the trials are and which data they use."""
    workload = inspection.workload
    length = "the whole run"
    if not inspection.is_whole:
        length = f"the first {workload.num_rounds:,} rounds of the run"
    return (
        f"A trial is {length} as `fedtailor run` trains it, scored on clients that it does not "
        f"train on: {inspection.num_clients:,} of them with {inspection.num_judged:,} examples, "
        f"others in each of {workload.num_trials} trials. No test example and no unseen client is "
        "used."
    )


# The picture


def draw_stage(inspection: Inspection, stage: str) -> Iterator[str]:
    """Yield a heading and a line for each setting: score, gain, and the interval of the gain."""
    forecast = inspection.forecasts[stage]
    if forecast.reference is None:
        yield f"{STAGE_NAMES[stage]}: no setting without server data has a finite model"
        return
    reference = inspection.settings[forecast.reference].label
    yield (f"{STAGE_NAMES[stage]}: {inspection.metric}, gain over {reference}, 95 % interval")
    axis = _Axis([each for each in forecast.estimates if each is not None])
    width = max(len(setting.label) for setting in inspection.settings)
    previous_uses_server = None
    for index, setting in enumerate(inspection.settings):
        if setting.uses_server != previous_uses_server:
            yield "  with the server's data" if setting.uses_server else "  without server data"
        previous_uses_server = setting.uses_server
        figures = _draw_estimate(inspection, stage, index, axis)
        yield f"    {setting.label:<{width}}  {figures}".rstrip()


def _draw_estimate(inspection: Inspection, stage: str, index: int, axis: "_Axis") -> str:
    forecast = inspection.forecasts[stage]
    estimate = forecast.estimates[index]
    if estimate is None:
        num_trials = int((~np.isnan(inspection.scores[stage][:, index])).sum())
        return f"diverged in {inspection.num_diverged[index]} of {num_trials} trials"
    score = _format_score(estimate.score)
    if index == forecast.reference:
        return f"{score:>6}"
    gain = _format_gain(estimate.gain)
    return f"{score:>6}  {gain:>6}  {_format_interval(estimate):<16}  {axis.draw(estimate)}"


class _Axis:
    """An axis on which intervals are drawn."""

    def __init__(self, estimates: list[Estimate]) -> None:
        ends = [0.0]
        for estimate in estimates:
            ends.append(estimate.gain)
            ends += [end for end in (estimate.low, estimate.high) if math.isfinite(end)]
        self._low = min(ends)
        self._high = max(ends)

    def draw(self, estimate: Estimate) -> str:
        """Draw an interval as a line with the gain on it; a bar marks no gain."""
        cells = [" "] * BAR_WIDTH
        for position in range(self._locate(estimate.low), self._locate(estimate.high) + 1):
            cells[position] = "-"
        cells[self._locate(0.0)] = "|"
        cells[self._locate(estimate.gain)] = "o"
        return "".join(cells)

    def _locate(self, gain: float) -> int:
        """Return the cell of a gain; one beyond the axis is drawn at its end."""
        span = self._high - self._low
        if span == 0:
            return 0
        share = (min(max(gain, self._low), self._high) - self._low) / span
        return round(share * (BAR_WIDTH - 1))


# Verdicts


def describe_verdict(inspection: Inspection) -> Iterator[str]:
    """Yield paragraphs: what is said before and after personalizing, and what to do."""
    for stage in inspection.forecasts:
        yield " ".join(describe_stage(inspection, stage))
    yield recommend(inspection)


def describe_stage(inspection: Inspection, stage: str) -> Iterator[str]:
    """Yield the sentences about a stage."""
    forecast = inspection.forecasts[stage]
    name = STAGE_NAMES[stage]
    if forecast.reference is None:
        yield f"{name}, nothing can be said: without server data every model diverges."
        return
    if forecast.best is None:
        yield f"{name}, every model that uses the server's data diverges."
        return
    estimate = forecast.estimates[forecast.best]
    assert estimate is not None
    reference = inspection.settings[forecast.reference].label
    best = inspection.settings[forecast.best].label
    figures = f"{_format_points(inspection, estimate)} with {best}"
    over = f"over {reference}, the best without it"
    if not inspection.is_whole:
        over += f", at round {inspection.num_rounds:,}"
    sentences = {
        Verdict.HELPS: f"the server's data helps: {figures} {over}.",
        Verdict.PROBABLY_HELPS: f"the server's data probably helps: {figures} {over}.",
        Verdict.NO_DIFFERENCE: (
            f"the server's data makes no difference: at best {figures} {over}."
        ),
        Verdict.PROBABLY_NO_DIFFERENCE: (
            f"the server's data probably makes no difference: at best {figures} {over}."
        ),
        Verdict.CANNOT_TELL: (
            f"these trials cannot tell whether the server's data helps: at best {figures} {over}."
        ),
        Verdict.PROBABLY_HARMS: (f"the server's data probably harms: at best {figures} {over}."),
        Verdict.HARMS: f"the server's data harms: at best {figures} {over}.",
    }
    yield f"{name}, {sentences[estimate.verdict]}"
    yield from _describe_plain_part(inspection, forecast)
    yield from _describe_losses(inspection, forecast)
    yield from describe_fractions(inspection, stage)


def _describe_plain_part(inspection: Inspection, forecast: StageForecast) -> Iterator[str]:
    """Yield what part of a gain over the plain method needs no server data, if there is one."""
    assert forecast.best is not None
    best = forecast.estimates[forecast.best]
    plain = forecast.estimates[0]
    if forecast.reference in (None, 0) or best is None or plain is None:
        return
    assert forecast.reference is not None
    if plain.likely_high < 0 < best.gain - plain.gain:
        yield (
            f"Of the {_format_gain(best.gain - plain.gain)} of "
            f"{inspection.settings[forecast.best].label} over {inspection.settings[0].label}, "
            f"{_format_gain(-plain.gain)} need no server data: "
            f"{inspection.settings[forecast.reference].label} has them too."
        )


def _describe_losses(inspection: Inspection, forecast: StageForecast) -> Iterator[str]:
    """Yield which other strength of the best method certainly falls behind most, if any does."""
    if forecast.best is None or forecast.verdict == Verdict.HARMS:
        return
    method = inspection.settings[forecast.best].config.method
    behind = []
    for setting, estimate in zip(inspection.settings, forecast.estimates, strict=True):
        is_other_strength = setting.uses_server and setting.config.method == method
        if is_other_strength and estimate is not None and estimate.high < -SMALL_GAIN:
            behind.append((estimate.gain, setting.label, estimate))
    if behind:
        _, label, estimate = min(behind)
        interval = f"{-100 * estimate.high:.1f} to {-100 * estimate.low:.1f}"
        yield f"{label} is behind by {-100 * estimate.gain:.1f} ({interval})."


def describe_fractions(inspection: Inspection, stage: str) -> Iterator[str]:
    """Yield a sentence on how much of the server's data is needed, if that was tried."""
    forecast = inspection.forecasts[stage]
    fractions = inspection.fractions.get(stage, ())
    if not fractions or forecast.best is None:
        return
    best = forecast.estimates[forecast.best]
    assert best is not None
    tolerance = max(SMALL_GAIN, NEAR_SHARE * best.gain)
    unit = _get_unit(inspection)
    for part in fractions:
        if part.estimate is not None and part.estimate.low > 0:
            yield (
                f"{_name_part(inspection, part)} gain more than all of them "
                f"{_format_interval(part.estimate)}, so more of it is not better here."
            )
            return
    for part in fractions:
        if part.estimate is not None and part.estimate.low >= -tolerance:
            yield (
                f"{_name_part(inspection, part)} do as well as all of them, within "
                f"{100 * tolerance:.1f} {unit} {_format_interval(part.estimate)}."
            )
            return
    last = fractions[-1]
    if last.estimate is not None and last.estimate.high < 0:
        yield (
            f"{_name_part(inspection, last)} gain less than all of them "
            f"{_format_interval(last.estimate)}, so more of it may help further."
        )
        return
    yield "These trials cannot tell whether fewer of its examples would do as well."


def recommend(inspection: Inspection) -> str:
    """Return what to do."""
    helped: dict[int, list[str]] = {}
    for stage, forecast in inspection.forecasts.items():
        if forecast.verdict in HELPFUL and forecast.best is not None:
            helped.setdefault(forecast.best, []).append(stage)
    if helped:
        return f"{_recommend_settings(inspection, helped)}{_warn(inspection)}"
    without = _name_references(inspection)
    verdicts = {forecast.verdict for forecast in inspection.forecasts.values()}
    is_suspect = inspection.agreement is not None and inspection.agreement.is_suspect
    is_harmful = bool(verdicts & {Verdict.HARMS, Verdict.PROBABLY_HARMS})
    if is_suspect or is_harmful or Verdict.CANNOT_TELL not in verdicts:
        return f"Do not use the server's data{_give_reason(inspection)}. Without it: {without}."
    return (
        "Cannot tell: more trials would say more (minutes=5, say). Until then do without: "
        f"{without}."
    )


def _recommend_settings(inspection: Inspection, helped: dict[int, list[str]]) -> str:
    """Return which settings to use for which stages, and what they do in the other stage."""
    choices = []
    sentences = []
    for index, stages in helped.items():
        label = f"method={inspection.settings[index].label}"
        if len(stages) == len(inspection.forecasts):
            return f"Use the server's data: {label}."
        choices.append(f"{label} for models {STAGE_NAMES[stages[0]].lower()}")
        for stage, forecast in inspection.forecasts.items():
            estimate = forecast.estimates[index]
            if stage not in stages and estimate is not None:
                sentences.append(
                    f"{STAGE_NAMES[stage]}, {inspection.settings[index].label} gains "
                    f"{_format_points(inspection, estimate)}."
                )
    return " ".join([f"Use the server's data: {', or '.join(choices)}.", *sentences])


def _warn(inspection: Inspection) -> str:
    """Return a warning of labels that seem wrong, or nothing."""
    if inspection.agreement is None or not inspection.agreement.is_suspect:
        return ""
    return (
        " But its labels do not match its inputs, or these are of another kind: what is gained may "
        "be steadier steps alone, which a lower lr may give without it."
    )


def _name_references(inspection: Inspection) -> str:
    labels = []
    for forecast in inspection.forecasts.values():
        if forecast.reference is not None:
            labels.append(f"method={inspection.settings[forecast.reference].label}")
    if not labels:
        return "lower lr, since every model diverges"
    return ", or ".join(dict.fromkeys(labels))


def _give_reason(inspection: Inspection) -> str:
    """Return why the server's data does not help, as far as that is plain to see; or nothing."""
    agreement = inspection.agreement
    if agreement is not None and agreement.is_suspect:
        return ", whose labels do not match its inputs, or whose inputs are of another kind"
    closeness = inspection.closeness
    if closeness is None or closeness.label_distance is None:
        return ""
    if closeness.label_distance > (closeness.client_label_distance or math.inf):
        return ", whose labels are distributed differently from the clients' labels"
    return ""


# Reasons


def describe_reasons(inspection: Inspection) -> Iterator[str]:
    """Yield numbers that may explain the gains, in one or two sentences each."""
    agreement = inspection.agreement
    closeness = inspection.closeness
    if agreement is None or closeness is None:
        return
    sentence = (
        f"Without server data a model reaches {_format_score(agreement.clients)} on validation "
        f"clients' examples and {_format_score(agreement.server)} on the server's"
    )
    if agreement.majority_share is None:
        yield f"{sentence}."
    else:
        share = f"{agreement.majority_share:.1%}"
        yield f"{sentence}, whose most frequent label has a share of {share}."
    if closeness.label_distance is not None:
        yield (
            "The total variation distance (0 to 1) from the clients' mean label distribution is "
            f"{closeness.label_distance:.2f} for the server and, on average, "
            f"{closeness.client_label_distance:.2f} for a client."
        )
    if closeness.image_similarity is not None:
        yield (
            "The structural similarity (SSIM, at most 1) of the server's mean image and a client's "
            f"is {closeness.image_similarity:.2f} on average."
        )
    if closeness.example_distance is not None:
        yield (
            "The sliced 1-Wasserstein distance from the clients' mean distribution of examples is "
            f"{closeness.example_distance:.3g} for the server and, on average, "
            f"{closeness.client_example_distance:.3g} for a client."
        )
    yield (
        f"At that model the squared distance from the clients' overall gradient is xi^2 = "
        f"{closeness.gradient_gaps.server:.3g} for the server's and, on average, G^2 = "
        f"{closeness.gradient_gaps.clients:.3g} for a client's; the cosine between the server's "
        f"and the overall gradient is {closeness.gradient_cosine:.2f}."
    )
    if closeness.conditions is not None:
        yield _describe_conditions(closeness.conditions, closeness.smoothness)


def _describe_conditions(conditions: Conditions, smoothness: float) -> str:
    angle = conditions.angle
    if angle.is_met:
        relation = f"{angle.left:.3g} > {angle.right:.3g}"
        effect = "is met, so a first server step is expected to lower the clients' loss"
    else:
        relation = f"{angle.left:.3g} <= {angle.right:.3g}"
        effect = "is not met, so a first server step is not expected to lower the clients' loss"
    pace = conditions.small_steps
    return (
        f"FSL's angle condition ({relation}, with L = {smoothness:.3g}) {effect}; its convergence "
        "theorem asks for a server step size times steps a round of at most "
        f"{pace.right:.3g}, and FSL uses {pace.left:.3g}."
    )


# JSON


def format_inspection(inspection: Inspection) -> dict[str, Any]:
    """Return everything about an inspection as JSON's dicts, lists, numbers and strings."""
    agreement = inspection.agreement
    content = {
        "name": inspection.name,
        "examples": inspection.examples,
        "message": list(describe_verdict(inspection)),
        "forecasts": {stage: _format_forecast(inspection, stage) for stage in inspection.forecasts},
        "settings": [
            {"label": setting.label, "uses_server_data": setting.uses_server}
            for setting in inspection.settings
        ],
        "trials": inspection.workload.num_trials,
        "trial_rounds": inspection.workload.num_rounds,
        "rounds": inspection.num_rounds,
        "estimated_seconds": inspection.workload.seconds,
        "judged_clients": inspection.num_clients,
        "judged_examples": inspection.num_judged,
        "metric": inspection.metric,
        "num_diverged": list(inspection.num_diverged),
        "agreement": None if agreement is None else agreement._asdict(),
        "is_suspect": agreement is not None and agreement.is_suspect,
        "closeness": _format_closeness(inspection.closeness),
    }
    return {name: _replace_infinite(value) for name, value in content.items()}


def _format_forecast(inspection: Inspection, stage: str) -> dict[str, Any]:
    forecast = inspection.forecasts[stage]
    labels = [setting.label for setting in inspection.settings]
    fractions = []
    for part in inspection.fractions.get(stage, ()):
        fractions.append(part._asdict() | {"estimate": _format_estimate(part.estimate)})
    return {
        "verdict": forecast.verdict.value,
        "reference": None if forecast.reference is None else labels[forecast.reference],
        "best": None if forecast.best is None else labels[forecast.best],
        "estimates": {
            label: _format_estimate(estimate)
            for label, estimate in zip(labels, forecast.estimates, strict=True)
        },
        "scores": inspection.scores[stage].tolist(),
        "fractions": fractions,
    }


def _format_estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return estimate._asdict() | {"verdict": estimate.verdict.value}


def _format_closeness(closeness: Closeness | None) -> dict[str, Any] | None:
    if closeness is None:
        return None
    content = closeness._asdict()
    content["gradient_gaps"] = closeness.gradient_gaps._asdict()
    content["gradient_cosine"] = closeness.gradient_cosine
    if closeness.conditions is not None:
        content["conditions"] = {
            name: condition._asdict() for name, condition in closeness.conditions._asdict().items()
        }
    return content


def _replace_infinite(value: Any) -> Any:
    """Return JSON content with None for numbers that are not finite."""
    if isinstance(value, dict):
        return {name: _replace_infinite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_infinite(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# Numbers


def _name_part(inspection: Inspection, part: FractionForecast) -> str:
    return f"{part.num_examples:,} of its {inspection.examples:,} examples"


def _get_unit(inspection: Inspection) -> str:
    is_error = any(
        estimate is not None and estimate.score < 0
        for forecast in inspection.forecasts.values()
        for estimate in forecast.estimates
    )
    return "% of the error" if is_error else "points"


def _format_points(inspection: Inspection, estimate: Estimate) -> str:
    return (
        f"{_format_gain(estimate.gain)} {_get_unit(inspection)} "
        f"({_format_interval(estimate).strip('()')})"
    )


def _format_gain(gain: float) -> str:
    return f"{100 * gain:+.1f}"


def _format_interval(estimate: Estimate) -> str:
    if not math.isfinite(estimate.low):
        return "(unknown)"
    return f"({_format_gain(estimate.low)} to {_format_gain(estimate.high)})"


def _format_score(score: float) -> str:
    """Format an accuracy, or the error of a regression, which is a negative score."""
    if score < 0:
        return f"{-score:.3g}"
    return f"{score:.1%}"
