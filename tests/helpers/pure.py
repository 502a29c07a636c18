"""Small models, and what a refusal looks like."""

from collections.abc import Callable

import pytest
from torch import Tensor, nn

from fedtailor.errors import InputError


class Net(nn.Module):
    def __init__(self, make: Callable[[], nn.Module] = nn.Identity) -> None:
        super().__init__()
        self.body, self.inner, self.head = (
            nn.Linear(5, 6),
            nn.Sequential(nn.Tanh(), make()),
            nn.Linear(6, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.inner(self.body(x)))
        return logits


def refused_in_one_sentence(caught: pytest.ExceptionInfo[InputError]) -> bool:
    message = str(caught.value)
    return (
        message.startswith("Task: ")
        and message.endswith(".")
        and "\n" not in message
        and ". " not in message
    )
