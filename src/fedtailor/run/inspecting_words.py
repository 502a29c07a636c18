"""An inspection in words, bars and plain numbers."""

from collections.abc import Iterator
from typing import Any

from fedtailor.run.inspecting import Inspection
from fedtailor.run.inspecting_trials import LAST, ROUNDS, WARM, Trial

WIDTH = 32
NEARLY = 0.9
"""A part of the data with so much of the gain would do."""


def verdict(found: Inspection) -> str:
    """The verdict in one or two sentences."""
    if found.verdict == "helps":
        start = f"start with gamma={found.gamma.value:g} for fsl and beta={found.beta.value:g} for fedsim"
        return f"The server's data should help ({_gain(found, found.gamma)}): {start}. {enough(found)}"
    if found.verdict == "little":
        best = f"at best {_gain(found, found.gamma)}, at gamma=1 {_gain(found, found.gammas[-1])}"
        use = f"if it is used at all, start with gamma={found.gamma.value:g}"
        return f"The server's data should make little difference ({best}): {use}."
    cause = "its labels do not fit its inputs, or its inputs are of another kind" if found.strange else _shift(found)
    return (
        f"The server's data would harm ({_gain(found, found.gammas[-1])} at gamma=1): leave it out or mend it; {cause}."
    )


def _shift(found: Inspection) -> str:
    near = found.closeness
    if near.labels is not None and near.client_labels is not None and near.labels > near.client_labels:
        return "its labels are mixed otherwise than the clients'"
    return "what it teaches contradicts what clients know"


def enough(found: Inspection) -> str:
    """How much of the server's data would do."""
    whole = found.gain(found.gamma)
    for tried in found.parts:
        if found.gain(tried) >= NEARLY * whole:
            few = max(1, round(tried.value * found.examples))
            return f"About {few:,} of its {found.examples:,} examples would do nearly as well."
    return f"With half of its {found.examples:,} examples less is gained, so that more of them may help further."


def reasons(found: Inspection) -> Iterator[str]:
    """The numbers behind the verdict, a sentence each."""
    near = found.closeness
    yield found.looked_at
    yield (
        f"After {WARM} rounds of FedAvg the model scores {_shown(found.warm)} with validation clients and "
        f"{_shown(found.agreement)} on the server's data"
        + ("." if found.chance is None else f", whose commonest label is {found.chance:.1%} of it.")
    )
    if near.labels is not None:
        yield (
            f"Labels differ from the clients' together by {near.labels:.2f}; a client's do by {near.client_labels:.2f} "
            "(total variation, 0 to 1)."
        )
    if near.images is not None:
        yield f"The mean image and a client's are alike by {near.images:.2f} (SSIM, at most 1)."
    if near.examples is not None:
        yield (
            f"Examples are away from the clients' together by {near.examples:.3g}; a client's are by "
            f"{near.client_examples:.3g} (1-Wasserstein, sliced)."
        )
    yield (
        f"At that model xi^2 = {near.gaps.server:.3g} and G^2 = {near.gaps.clients:.3g}; the server's gradient and the "
        f"clients' have a cosine of {near.cosine:.2f}."
    )
    if near.conditions is not None:
        yield _condition(found)


def _condition(found: Inspection) -> str:
    near = found.closeness
    assert near.conditions is not None
    angle, small = near.conditions.angle, near.conditions.small_steps
    step = "expected to lower the clients' loss" if angle.holds else "not expected to lower the clients' loss"
    size = f"FSL's step sizes, {small.left:.3g} a round, should be at most {small.right:.3g} for its theorem"
    return (
        f"By FSL's angle condition a first server step is {step} ({angle.left:.3g} against {angle.right:.3g}, with "
        f"L = {near.smoothness:.3g}); {size}."
    )


def bars(found: Inspection) -> Iterator[str]:
    """The picture: a bar for each trial, what is gained or lost against no server data."""
    yield f"mean score of validation clients in the last {LAST} of {ROUNDS} further rounds, and what is gained"
    tried = [("no server data", found.without)]
    tried += [(f"gamma = {each.value:g} (fsl)", each) for each in found.gammas]
    tried += [(f"beta = {each.value:g} (fedsim)", each) for each in found.betas]
    tried += [(f"{each.value:.0%} of the data (fsl)", each) for each in found.parts]
    finite = [found.gain(each) for _, each in tried if each.score is not None]
    unit = max((abs(gain) for gain in finite), default=0.0) or 1.0
    for name, each in tried:
        yield f"{name:>22}  {_line(found, each, unit)}"


def _line(found: Inspection, trial: Trial, unit: float) -> str:
    if trial.score is None:
        return "diverged"
    gain, half = found.gain(trial), WIDTH // 2
    length = round(half * abs(gain) / unit)
    left, right = ("#" * length, "") if gain < 0 else ("", "#" * length)
    return f"{_shown(trial.score):>8}  {100 * gain:+6.1f}  {left:>{half}}|{right}".rstrip()


def plain(found: Inspection) -> dict[str, Any]:
    """What was found, as JSON has it."""
    near = found.closeness
    made = near._asdict() | {"cosine": near.cosine, "gaps": near.gaps._asdict()}
    if near.conditions is not None:
        made["conditions"] = {key: each._asdict() for key, each in near.conditions._asdict().items()}
    lists = {key: [each._asdict() for each in getattr(found, key)] for key in ("gammas", "betas", "parts")}
    gained = None if found.gammas[-1].score is None or found.without.score is None else found.predicted
    own = {"verdict": found.verdict, "said": verdict(found), "predicted": gained, "strange": found.strange}
    chosen = {"gamma": found.gamma.value, "beta": found.beta.value, "without": found.without._asdict()}
    return own | found._asdict() | chosen | lists | {"closeness": made}


def _gain(found: Inspection, trial: Trial) -> str:
    if trial.score is None:
        return "diverged"
    unit = "points" if found.without.score is None or found.without.score >= 0 else "% of the error"
    return f"{100 * found.gain(trial):+.1f} {unit}"


def _shown(score: float | None) -> str:
    return "-" if score is None else f"{score:.1%}" if score >= 0 else f"an error of {-score:.3g}"
