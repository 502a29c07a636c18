"""An inspection as sentences, bars and JSON."""

from collections.abc import Iterator
from typing import Any

from fedtailor.inspection.closeness import Closeness
from fedtailor.inspection.inspect import Inspection
from fedtailor.inspection.statistics.fsl_conditions import Conditions
from fedtailor.inspection.trials import SCORED_ROUNDS, TRIAL_ROUNDS, WARMUP_ROUNDS, InspectionTrial

BAR_WIDTH = 32
"""Width of the longest loss and the longest gain together, in characters."""

NEAR_FRACTION = 0.9
"""Fraction of the full gain at which a part of the server's data counts as sufficient."""


def describe_verdict(inspection: Inspection) -> str:
    """Return the verdict in one or two sentences."""
    best_gain = _format_gain(inspection, inspection.best_gamma)
    full_gain = _format_gain(inspection, inspection.gammas[-1])
    best_gamma = inspection.best_gamma.value
    best_beta = inspection.best_beta.value
    if inspection.verdict == "helps":
        return (
            f"The server's data should help ({best_gain}): start with gamma={best_gamma:g} for fsl "
            f"and beta={best_beta:g} for fedsim. {describe_needed_examples(inspection)}"
        )
    if inspection.verdict == "little":
        return (
            f"The server's data should make little difference (at best {best_gain}; {full_gain} at "
            f"gamma=1): if you use it at all, start with gamma={best_gamma:g}."
        )
    if inspection.is_suspect:
        cause = "its labels do not match its inputs, or its inputs are of a different kind"
    else:
        cause = describe_shift(inspection)
    return (
        f"The server's data would harm ({full_gain} at gamma=1): leave it out or fix it; {cause}."
    )


def describe_shift(inspection: Inspection) -> str:
    """Return a clause that says how the server's data differs most from the clients'."""
    server_distance = inspection.closeness.label_distance
    client_distance = inspection.closeness.client_label_distance
    if server_distance is None or client_distance is None or server_distance <= client_distance:
        return "training on it conflicts with training on the clients' data"
    return "its labels are distributed differently from the clients' labels"


def describe_needed_examples(inspection: Inspection) -> str:
    """Return a sentence that says how much of the server's data is sufficient."""
    full_gain = inspection.compute_gain(inspection.best_gamma)
    for trial in inspection.fractions:
        if inspection.compute_gain(trial) >= NEAR_FRACTION * full_gain:
            num_sufficient = max(1, round(trial.value * inspection.examples))
            return (
                f"About {num_sufficient:,} of its {inspection.examples:,} examples would help "
                "almost as much."
            )
    return (
        f"Half of its {inspection.examples:,} examples would help less, so more examples than "
        "these may help further."
    )


def describe_reasons(inspection: Inspection) -> Iterator[str]:
    """Yield the numbers behind the verdict, in one or two sentences each."""
    closeness = inspection.closeness
    yield inspection.scope
    yield _describe_warm_model(inspection)
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
        f"At the model after {WARMUP_ROUNDS} rounds, the squared distance from the clients' "
        f"overall gradient is xi^2 = {closeness.gradient_gaps.server:.3g} for the server's and, on "
        f"average, G^2 = {closeness.gradient_gaps.clients:.3g} for a client's; the cosine between "
        f"the server's and the overall gradient is {closeness.gradient_cosine:.2f}."
    )
    if closeness.conditions is not None:
        yield _describe_conditions(closeness.conditions, closeness.smoothness)


def _describe_warm_model(inspection: Inspection) -> str:
    sentence = (
        f"After {WARMUP_ROUNDS} rounds of FedAvg, the model reaches "
        f"{_format_score(inspection.warm_score)} on the validation clients' examples and "
        f"{_format_score(inspection.server_score)} on the server's"
    )
    if inspection.majority_share is None:
        return f"{sentence}."
    return (
        f"{sentence}, where the most frequent label has a share of {inspection.majority_share:.1%}."
    )


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
        f"{pace.right:.3g}, and FSL would use {pace.left:.3g}."
    )


def draw_bars(inspection: Inspection) -> Iterator[str]:
    """Yield a heading and a bar for each trial: its gain or loss against no server data."""
    yield (
        f"mean score on validation clients over the last {SCORED_ROUNDS} of {TRIAL_ROUNDS} further "
        "rounds, and gain over no server data"
    )
    named_trials = [("no server data", inspection.baseline)]
    for trial in inspection.gammas:
        named_trials.append((f"gamma = {trial.value:g} (fsl)", trial))
    for trial in inspection.betas:
        named_trials.append((f"beta = {trial.value:g} (fedsim)", trial))
    for trial in inspection.fractions:
        named_trials.append((f"{trial.value:.0%} of the data (fsl)", trial))
    gains = [inspection.compute_gain(trial) for _, trial in named_trials if trial.score is not None]
    max_gain = max((abs(gain) for gain in gains), default=0.0)
    for name, trial in named_trials:
        yield f"{name:>22}  {_draw_bar(inspection, trial, max_gain)}"


def _draw_bar(inspection: Inspection, trial: InspectionTrial, max_gain: float) -> str:
    """Draw one bar, to the left of the middle for a loss and to the right for a gain."""
    if trial.score is None:
        return "diverged"
    gain = inspection.compute_gain(trial)
    half_width = BAR_WIDTH // 2
    length = round(half_width * abs(gain) / max_gain) if max_gain > 0 else 0
    left = "#" * length if gain < 0 else ""
    right = "#" * length if gain >= 0 else ""
    score = _format_score(trial.score)
    return f"{score:>8}  {100 * gain:+6.1f}  {left:>{half_width}}|{right}"


def format_inspection(inspection: Inspection) -> dict[str, Any]:
    """Return everything about an inspection as JSON's dicts, lists, numbers and strings."""
    content = inspection._asdict()
    content["baseline"] = inspection.baseline._asdict()
    for name in ("gammas", "betas", "fractions"):
        content[name] = [trial._asdict() for trial in getattr(inspection, name)]
    content["closeness"] = _format_closeness(inspection.closeness)
    has_diverged = inspection.gammas[-1].score is None or inspection.baseline.score is None
    return {
        "verdict": inspection.verdict,
        "message": describe_verdict(inspection),
        "predicted_gain": None if has_diverged else inspection.predicted_gain,
        "is_suspect": inspection.is_suspect,
        **content,
        "best_gamma": inspection.best_gamma.value,
        "best_beta": inspection.best_beta.value,
    }


def _format_closeness(closeness: Closeness) -> dict[str, Any]:
    content = closeness._asdict()
    content["gradient_gaps"] = closeness.gradient_gaps._asdict()
    content["gradient_cosine"] = closeness.gradient_cosine
    if closeness.conditions is not None:
        content["conditions"] = {
            name: condition._asdict() for name, condition in closeness.conditions._asdict().items()
        }
    return content


def _format_gain(inspection: Inspection, trial: InspectionTrial) -> str:
    if trial.score is None:
        return "diverged"
    is_error = inspection.baseline.score is not None and inspection.baseline.score < 0
    unit = "% of the error" if is_error else "points"
    return f"{100 * inspection.compute_gain(trial):+.1f} {unit}"


def _format_score(score: float | None) -> str:
    """Format an accuracy, or the error of a regression, which is a negative score."""
    if score is None:
        return "-"
    if score < 0:
        return f"an error of {-score:.3g}"
    return f"{score:.1%}"
