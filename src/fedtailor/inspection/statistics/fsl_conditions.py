"""FSL's conditions, from gradients at a model and the step sizes of a run.

Mai, La and Zhang, section III:

    (8)   2 <grad F, grad f_0>  >  L s |grad f_0|^2         a step of size s on f_0 decreases F
    (9)   |grad F|^2 + (1 - L s) |grad f_0|^2  >  xi^2      the same inequality, rewritten
    (11)  K eta_l eta_g  =  K_0 eta_0  <=  1/(4 L) min{eta_g, 1/gamma, 8/9}
    (13)  K_0 eta_0  <=  1/(8 L (gamma + 1)) min{1, (gamma + 1)^2 / (2 kappa)},
          kappa = max{4 gamma^3, 2 / eta_g^2 + 3 gamma^2}

With (13), h >= (3 gamma + 1) / 4 in theorem 1.
Section III-A, with (8) and (9), writes eta_0 for the size s of the server's step, which in
algorithm 1 is gamma eta_0; s is gamma eta_0 here. With gamma = 0, (8) says that the gradients make
an acute angle, and 1/gamma bounds nothing.
"""

import math
from typing import NamedTuple

from fedtailor.errors import InputError, require
from fedtailor.inspection.statistics.gradients import GradientGaps


class StepSizes(NamedTuple):
    """Rates and numbers of steps of a run with FSL."""

    gamma: float  # weight of the server's learning
    lr: float  # eta_l, the rate of a client's steps
    steps: float  # K, the number of a client's steps in a round
    server_lr: float  # eta_g, the rate at which the clients' mean update is added
    learn_lr: float  # eta_0, the rate of the server's own steps
    learn_steps: float  # K_0, the number of the server's own steps in a round


class Condition(NamedTuple):
    """Both sides of a condition, and whether it holds."""

    left: float
    right: float
    is_met: bool


class Conditions(NamedTuple):
    """FSL's conditions: server learning helps with (8), (9), and converges with (11), (13)."""

    angle: Condition  # (8)
    distance: Condition  # (9)
    equal_steps: Condition  # (11), the equation
    small_steps: Condition  # (11), the inequality
    progress: Condition  # (13)


def check_fsl_conditions(
    gaps: GradientGaps, smoothness: float, step_sizes: StepSizes
) -> Conditions:
    """Compute both sides of FSL's conditions.

    Args:
        gaps: Gradients at the model where the server begins to learn.
        smoothness: L, a Lipschitz constant of all gradients.
        step_sizes: Those of the run; all but gamma must be positive.
    """
    gamma, lr, steps, server_lr, learn_lr, learn_steps = step_sizes
    require(gamma >= 0, f"check_fsl_conditions: gamma must not be negative, got {gamma}.")
    positive_values = {"smoothness": smoothness, **step_sizes._asdict()}
    del positive_values["gamma"]
    for name, value in positive_values.items():
        require(value > 0, f"check_fsl_conditions: {name} must be positive, got {value}.")
    if gaps.server is None or gaps.server_norm is None or gaps.product is None:
        raise InputError(
            "check_fsl_conditions: the server's gradient is needed, but the server has no examples."
        )
    clients_pace = steps * lr * server_lr
    server_pace = learn_steps * learn_lr
    relative_step = smoothness * gamma * learn_lr  # L s
    inverse_gamma = 1 / gamma if gamma > 0 else math.inf
    kappa = max(4 * gamma**3, 2 / server_lr**2 + 3 * gamma**2)
    max_small_pace = min(server_lr, inverse_gamma, 8 / 9) / (4 * smoothness)
    max_progress_pace = min(1.0, (gamma + 1) ** 2 / (2 * kappa)) / (8 * smoothness * (gamma + 1))
    return Conditions(
        angle=_greater_than(2 * gaps.product, relative_step * gaps.server_norm),
        distance=_greater_than(
            gaps.overall_norm + (1 - relative_step) * gaps.server_norm, gaps.server
        ),
        equal_steps=Condition(
            clients_pace, server_pace, math.isclose(clients_pace, server_pace, rel_tol=1e-9)
        ),
        small_steps=_at_most(server_pace, max_small_pace),
        progress=_at_most(server_pace, max_progress_pace),
    )


def _greater_than(left: float, right: float) -> Condition:
    return Condition(left, right, left > right)


def _at_most(left: float, right: float) -> Condition:
    return Condition(left, right, left <= right)
