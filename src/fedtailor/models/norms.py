"""GroupNorm in place of BatchNorm: the normalisation that needs nothing but the example itself."""

import copy

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def with_group_norm(model: nn.Module, groups: int = 32) -> nn.Module:
    """A copy of the model in which every BatchNorm layer is a GroupNorm of at most `groups` groups.

    The number of groups is the largest one that divides the channels and leaves at least two in each. BatchNorm1d
    becomes one group, because it may see plain vectors, of which small groups would leave hardly more than signs.
    Scale and shift are taken over, frozen if they were; a layer used in several places stays one layer.
    """
    made: dict[_BatchNorm, nn.GroupNorm] = {}
    copied = copy.deepcopy(model)
    for module in list(copied.modules()):
        for name, child in list(module._modules.items()):
            if isinstance(child, _BatchNorm):
                made[child] = made.get(child) or _group_norm(child, groups)
                setattr(module, name, made[child])
    return _group_norm(copied, groups) if isinstance(copied, _BatchNorm) else copied


def _group_norm(layer: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = layer.num_features
    most = 1 if isinstance(layer, nn.BatchNorm1d) else max(1, min(groups, channels // 2))
    fitting = max(count for count in range(1, most + 1) if channels % count == 0)
    norm = nn.GroupNorm(fitting, channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        norm.weight, norm.bias = layer.weight, layer.bias  # the layer is a copy, so its parameters may move
    return norm.train(layer.training)
