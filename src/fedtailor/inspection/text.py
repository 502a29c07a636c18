"""An inspection in words, bars and plain numbers."""

from collections.abc import Iterator
from typing import Any

from fedtailor.inspection.inspect import Inspection
from fedtailor.inspection.trials import SCORED_ROUNDS, TRIAL_ROUNDS, WARMUP_ROUNDS, InspectionTrial

BAR_WIDTH = 32
NEAR_FRACTION = 0.9
"""A part of the data with so much of the gain would do."""


def describe_verdict(inspection: Inspection) -> str:
    """The verdict in one or two sentences."""
    if inspection.verdict == "helps":
        gamma = inspection.best_gamma.value
        beta = inspection.best_beta.value
        gain = _format_gain(inspection, inspection.best_gamma)
        start = f"start with gamma={gamma:g} for fsl and beta={beta:g} for fedsim"
        return f"The server's data should help ({gain}): {start}. {describe_needed_examples(inspection)}"
    if inspection.verdict == "little":
        gain = _format_gain(inspection, inspection.best_gamma)
        best = f"at best {gain}, at gamma=1 {_format_gain(inspection, inspection.gammas[-1])}"
        use = f"if it is used at all, start with gamma={inspection.best_gamma.value:g}"
        return f"The server's data should make little difference ({best}): {use}."
    cause = (
        "its labels do not fit its inputs, or its inputs are of another kind"
        if inspection.is_suspect
        else describe_shift(inspection)
    )
    gain = _format_gain(inspection, inspection.gammas[-1])
    return f"The server's data would harm ({gain} at gamma=1): leave it out or mend it; {cause}."


def describe_shift(inspection: Inspection) -> str:
    """Say in what the server's data differ most from the clients'."""
    closeness = inspection.closeness
    if (
        closeness.label_distance is not None
        and closeness.client_label_distance is not None
        and closeness.label_distance > closeness.client_label_distance
    ):
        return "its labels are mixed otherwise than the clients'"
    return "what it teaches contradicts what clients know"


def describe_needed_examples(inspection: Inspection) -> str:
    """How much of the server's data would do."""
    full_gain = inspection.compute_gain(inspection.best_gamma)
    for trial in inspection.fractions:
        if inspection.compute_gain(trial) >= NEAR_FRACTION * full_gain:
            few = max(1, round(trial.value * inspection.examples))
            return f"About {few:,} of its {inspection.examples:,} examples would do nearly as well."
    return f"With half of its {inspection.examples:,} examples less is gained, so that more of them may help further."


def describe_reasons(inspection: Inspection) -> Iterator[str]:
    """The numbers behind the verdict, a sentence each."""
    closeness = inspection.closeness
    yield inspection.scope
    yield (
        f"After {WARMUP_ROUNDS} rounds of FedAvg the model scores {_format_score(inspection.warm_score)} "
        "with validation clients and "
        f"{_format_score(inspection.server_score)} on the server's data"
        + (
            "."
            if inspection.majority_share is None
            else f", whose commonest label is {inspection.majority_share:.1%} of it."
        )
    )
    if closeness.label_distance is not None:
        yield (
            f"Labels differ from the clients' together by {closeness.label_distance:.2f}; "
            f"a client's do by {closeness.client_label_distance:.2f} "
            "(total variation, 0 to 1)."
        )
    if closeness.image_similarity is not None:
        yield f"The mean image and a client's are alike by {closeness.image_similarity:.2f} (SSIM, at most 1)."
    if closeness.example_distance is not None:
        yield (
            f"Examples are away from the clients' together by {closeness.example_distance:.3g}; a client's are by "
            f"{closeness.client_example_distance:.3g} (1-Wasserstein, sliced)."
        )
    yield (
        f"At that model xi^2 = {closeness.gradient_gaps.server:.3g} and "
        f"G^2 = {closeness.gradient_gaps.clients:.3g}; the server's gradient and the "
        f"clients' have a cosine of {closeness.gradient_cosine:.2f}."
    )
    if closeness.conditions is not None:
        yield _describe_conditions(inspection)


def _describe_conditions(inspection: Inspection) -> str:
    closeness = inspection.closeness
    assert closeness.conditions is not None
    angle, small = closeness.conditions.angle, closeness.conditions.small_steps
    step = (
        "expected to lower the clients' loss"
        if angle.is_met
        else "not expected to lower the clients' loss"
    )
    size = f"FSL's step sizes, {small.left:.3g} a round, should be at most {small.right:.3g} for its theorem"
    return (
        f"By FSL's angle condition a first server step is {step} ({angle.left:.3g} against {angle.right:.3g}, with "
        f"L = {closeness.smoothness:.3g}); {size}."
    )


def draw_bars(inspection: Inspection) -> Iterator[str]:
    """The picture: a bar for each trial, what is gained or lost against no server data."""
    rounds = f"the last {SCORED_ROUNDS} of {TRIAL_ROUNDS} further rounds"
    yield f"mean score of validation clients in {rounds}, and what is gained"
    named_trials = [("no server data", inspection.baseline)]
    named_trials += [(f"gamma = {each.value:g} (fsl)", each) for each in inspection.gammas]
    named_trials += [(f"beta = {each.value:g} (fedsim)", each) for each in inspection.betas]
    named_trials += [(f"{each.value:.0%} of the data (fsl)", each) for each in inspection.fractions]
    finite = [inspection.compute_gain(each) for _, each in named_trials if each.score is not None]
    unit = max((abs(gain) for gain in finite), default=0.0) or 1.0
    for name, each in named_trials:
        yield f"{name:>22}  {_draw_bar(inspection, each, unit)}"


def _draw_bar(inspection: Inspection, trial: InspectionTrial, unit: float) -> str:
    if trial.score is None:
        return "diverged"
    gain, half = inspection.compute_gain(trial), BAR_WIDTH // 2
    length = round(half * abs(gain) / unit)
    left, right = ("#" * length, "") if gain < 0 else ("", "#" * length)
    return f"{_format_score(trial.score):>8}  {100 * gain:+6.1f}  {left:>{half}}|{right}".rstrip()


def inspection_to_json(inspection: Inspection) -> dict[str, Any]:
    """What was found, as JSON has it."""
    closeness = inspection.closeness
    closeness_json = closeness._asdict() | {
        "gradient_cosine": closeness.gradient_cosine,
        "gradient_gaps": closeness.gradient_gaps._asdict(),
    }
    if closeness.conditions is not None:
        closeness_json["conditions"] = {
            key: each._asdict() for key, each in closeness.conditions._asdict().items()
        }
    lists = {
        key: [each._asdict() for each in getattr(inspection, key)]
        for key in ("gammas", "betas", "fractions")
    }
    predicted = (
        None
        if inspection.gammas[-1].score is None or inspection.baseline.score is None
        else inspection.predicted_gain
    )
    own = {
        "verdict": inspection.verdict,
        "message": describe_verdict(inspection),
        "predicted_gain": predicted,
        "is_suspect": inspection.is_suspect,
    }
    chosen = {
        "best_gamma": inspection.best_gamma.value,
        "best_beta": inspection.best_beta.value,
        "baseline": inspection.baseline._asdict(),
    }
    return own | inspection._asdict() | chosen | lists | {"closeness": closeness_json}


def _format_gain(inspection: Inspection, trial: InspectionTrial) -> str:
    if trial.score is None:
        return "diverged"
    unit = (
        "points"
        if inspection.baseline.score is None or inspection.baseline.score >= 0
        else "% of the error"
    )
    return f"{100 * inspection.compute_gain(trial):+.1f} {unit}"


def _format_score(score: float | None) -> str:
    return "-" if score is None else f"{score:.1%}" if score >= 0 else f"an error of {-score:.3g}"
