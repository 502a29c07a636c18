"""GroupNorm in place of BatchNorm: the normalisation that needs nothing but the example itself."""

import copy

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def with_group_norm(model: nn.Module, groups: int = 32) -> nn.Module:
    """A copy of the model in which every BatchNorm layer is a GroupNorm of at most `groups` groups.

    The number of groups is the largest one that divides the channels. Scale and shift are taken over.
    """
    if isinstance(model, _BatchNorm):
        return _group_norm(model, groups)
    copied = copy.deepcopy(model)
    for module in list(copied.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, _BatchNorm):
                setattr(module, name, _group_norm(child, groups))
    return copied


def _group_norm(layer: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = layer.num_features
    fitting = max(count for count in range(1, min(groups, channels) + 1) if channels % count == 0)
    made = nn.GroupNorm(fitting, channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        made.load_state_dict({"weight": layer.weight.detach().clone(), "bias": layer.bias.detach().clone()})
    return made
