from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from agreement import clone, distance
from fedtailor import classification, with_group_norm
from fedtailor.core.functionalize import seed_initialization
from fedtailor.core.task import validate_task
from fedtailor.core.types import Batch


class Block(nn.Module):
    """A residual block with a projection, as in ResNets."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = (
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.conv2, self.bn2 = (
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.skip = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        return nnf.relu(self.bn2(self.conv2(nnf.relu(self.bn1(self.conv1(x))))) + self.skip(x))


def residual() -> nn.Sequential:
    with seed_initialization(2):
        return nn.Sequential(
            Block(3, 12),
            Block(12, 64),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.BatchNorm1d(64),
            nn.Linear(64, 3),
        )


def layers(model: nn.Module, kind: type[Any]) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, kind)]


def test_every_batch_norm_at_any_depth_is_replaced_and_the_original_is_not() -> None:
    model = residual()
    before, found = clone(model.state_dict()), layers(model, nn.modules.batchnorm._BatchNorm)
    made = with_group_norm(model)
    assert not layers(made, nn.modules.batchnorm._BatchNorm)
    assert len(layers(made, nn.GroupNorm)) == len(found) == 7
    assert layers(model, nn.modules.batchnorm._BatchNorm) == found
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
    assert distance(before, model.state_dict()) == 0


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
@pytest.mark.parametrize(
    ("channels", "most", "groups"),
    [
        (1, 32, 1),
        (2, 32, 1),
        (3, 32, 1),
        (7, 32, 1),
        (12, 32, 6),
        (64, 32, 32),
        (64, 8, 8),
        (96, 40, 32),
        (100, 32, 25),
    ],
)
def test_groups_divide_the_channels_and_hold_two_at_least(
    kind: Any, channels: int, most: int, groups: int
) -> None:
    made: Any = with_group_norm(kind(channels), most)
    assert (made.num_groups, made.num_channels) == (groups, channels)


@pytest.mark.parametrize("channels", [6, 64])
def test_vectors_are_normalized_as_a_whole_and_keep_what_they_say(channels: int) -> None:
    x = torch.arange(4 * channels).reshape(4, channels).float() ** 1.5
    made = with_group_norm(nn.BatchNorm1d(channels))
    assert torch.allclose(made(x), nnf.layer_norm(x, (channels,)), atol=1e-6)
    assert len(set(made(x)[0].tolist())) == channels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scale_shift_epsilon_and_flags_are_taken_over(dtype: torch.dtype) -> None:
    layer = nn.BatchNorm2d(12, eps=0.3).to(dtype).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(0.1, 2, 12))
        layer.bias.copy_(torch.linspace(-1, 1, 12))
    layer.bias.requires_grad_(False)
    made: Any = with_group_norm(layer)
    x = torch.linspace(-1, 1, 2 * 12 * 3 * 3, dtype=dtype).reshape(2, 12, 3, 3) ** 3
    assert torch.equal(made(x), nnf.group_norm(x, 6, layer.weight, layer.bias, 0.3))
    assert (made.weight.requires_grad, made.bias.requires_grad, made.training) == (
        True,
        False,
        False,
    )
    assert made.weight is not layer.weight
    plain: Any = with_group_norm(nn.BatchNorm2d(12, affine=False))
    assert plain.weight is None
    assert torch.allclose(plain(x.float()), nnf.group_norm(x.float(), 6), atol=1e-6)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm2d(4)
        self.second, self.inner = self.first, nn.Sequential(self.first)


def test_a_layer_under_several_names_stays_one_layer() -> None:
    made: Any = with_group_norm(Shared())
    assert isinstance(made.first, nn.GroupNorm)
    assert made.first is made.second is made.inner[0]


def test_a_converted_network_is_a_task_that_does_not_mix_examples() -> None:
    task = classification(with_group_norm(residual()))
    x, y = torch.linspace(-1, 1, 3 * 3 * 4 * 4).reshape(3, 3, 4, 4) ** 2, torch.tensor([0, 2, 1])
    assert validate_task(task, x, y).shape == (3, 3)
    assert torch.allclose(
        task.compute_outputs(task.params, x)[:1],
        task.compute_outputs(task.params, x[:1]),
        atol=1e-5,
    )
    losses = [
        task.loss(task.params, Batch(x[i : i + 1], y[i : i + 1], torch.ones(1), torch.tensor(0)))
        for i in range(3)
    ]
    together = task.loss(task.params, Batch(x, y, torch.ones(3), torch.tensor(0)))
    assert torch.allclose(torch.stack(losses).mean(), together, atol=1e-5)
