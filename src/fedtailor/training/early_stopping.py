"""Early stopping: training ends when validation clients have not improved for some evaluations.

They are judged by the mean of the headline metric over them, after personalizing. Test clients have
no part in it. The last round stands for the run, as always; an earlier one may have been better.
"""

import math
from collections.abc import Sequence

from fedtailor.data.dataset import FederatedDataset
from fedtailor.errors import require
from fedtailor.training.record.schema import MetricInfo, RoundEntry


def check_patience(patience: int | None, data: FederatedDataset) -> None:
    """Raise an InputError if there are no clients to judge by."""
    require(
        patience is None or len(data.groups["validation"]) > 0,
        f"patience: validation clients decide when to stop, but data set '{data.name}' has none; "
        "give it some (data.validation_clients=0.1) or leave patience out.",
    )


def has_stopped_improving(
    entries: Sequence[RoundEntry], metric: MetricInfo, patience: int | None
) -> bool:
    """Return whether the last evaluations, as many as `patience`, were no better than one before.

    Args:
        entries: The rounds so far; those without scores do not count.
        metric: The headline metric.
        patience: A number of evaluations; None never stops.
    """
    if patience is None:
        return False
    sign = 1 if metric.higher_is_better else -1
    best = -math.inf
    num_without = 0
    for entry in entries:
        if entry.scores is None:
            continue
        value = entry.scores["validation"]["after"][metric.name]
        score = -math.inf if value is None else sign * value
        num_without += 1
        if score > best:
            best = score
            num_without = 0
    return num_without >= patience
