"""GroupNorm in place of BatchNorm: the normalization that needs nothing but the example itself."""

import copy

from torch import nn

from fedtailor.compat.torch_internals import is_batch_norm

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


def with_group_norm(model: nn.Module, groups: int = 32) -> nn.Module:
    """A copy of the model in which every BatchNorm layer is a GroupNorm of at most `groups` groups.

    The number of groups is the largest one that divides the channels and leaves at least two in each. BatchNorm1d
    becomes one group, because it may see plain vectors, of which small groups would leave hardly more than signs.
    Scale and shift are taken over, frozen if they were; a layer used in several places stays one layer.
    """
    replaced: dict[BatchNorm, nn.GroupNorm] = {}
    copied = copy.deepcopy(model)
    for module in list(copied.modules()):
        for name, child in list(module._modules.items()):
            if is_batch_norm(child):
                replaced[child] = replaced.get(child) or _make_group_norm(child, groups)
                setattr(module, name, replaced[child])
    return _make_group_norm(copied, groups) if is_batch_norm(copied) else copied


def _make_group_norm(layer: BatchNorm, groups: int) -> nn.GroupNorm:
    channels = layer.num_features
    most = 1 if isinstance(layer, nn.BatchNorm1d) else max(1, min(groups, channels // 2))
    fitting = max(count for count in range(1, most + 1) if channels % count == 0)
    norm = nn.GroupNorm(fitting, channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        norm.weight, norm.bias = (
            layer.weight,
            layer.bias,
        )  # the layer is a copy, so its parameters may move
    return norm.train(layer.training)
