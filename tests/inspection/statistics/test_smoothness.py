"""The largest curvature against dense Hessians."""

import pytest
import torch
from torch import Tensor

from fedtailor.core.types import Batch
from fedtailor.errors import InputError
from fedtailor.inspection.statistics import estimate_smoothness
from scenarios import toy_data, toy_task


def some_batch(count: int = 40) -> Batch:
    data, key = toy_data(), torch.zeros((), dtype=torch.int64)
    x, y = torch.from_numpy(data.clients.x[:count]), torch.from_numpy(data.clients.y[:count])
    return Batch(x, y, torch.ones(count, dtype=torch.float64), key)


def test_it_is_the_largest_eigenvalue_of_the_dense_hessian() -> None:
    task, batch = toy_task(), some_batch()
    names, shapes = list(task.params), [value.shape for value in task.params.values()]
    sizes = [value.numel() for value in task.params.values()]

    def loss(flat: Tensor) -> Tensor:
        pieces = torch.split(flat, sizes)
        params = {
            name: part.reshape(shape)
            for name, part, shape in zip(names, pieces, shapes, strict=True)
        }
        outputs = torch.func.functional_call(task.eval_module, params, (batch.x,))
        return torch.nn.functional.cross_entropy(outputs, batch.y)

    flat = torch.cat([value.detach().flatten() for value in task.params.values()])
    hessian = torch.func.hessian(loss)(flat)
    largest = float(torch.linalg.eigvalsh(hessian).abs().max())
    assert estimate_smoothness(task, task.params, batch, steps=300) == pytest.approx(
        largest, rel=1e-4
    )
    assert estimate_smoothness(task, task.params, batch, steps=3) <= largest * (1 + 1e-9)


def test_it_needs_a_step() -> None:
    with pytest.raises(InputError, match="steps must be at least 1, got 0"):
        estimate_smoothness(toy_task(), toy_task().params, some_batch(), steps=0)
