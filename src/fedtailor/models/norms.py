"""GroupNorm in place of BatchNorm: it normalizes each example alone, without batch statistics."""

import copy

from torch import nn

from fedtailor.compat.torch_internals import is_batch_norm

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


def with_group_norm(model: nn.Module, groups: int = 32) -> nn.Module:
    """Return a copy of `model` whose BatchNorm layers are GroupNorms of at most `groups` groups.

    The number of groups is the largest one that divides the channels and leaves at least two in
    each. A BatchNorm1d becomes one group: it may see plain vectors, of which groups of two would
    leave hardly more than signs. Scale and shift are kept, frozen if they were; a layer that is
    used in several places stays one layer.
    """
    copied = copy.deepcopy(model)
    if is_batch_norm(copied):
        return _make_group_norm(copied, groups)
    group_norms: dict[BatchNorm, nn.GroupNorm] = {}
    for name, layer in list(copied.named_modules(remove_duplicate=False)):
        if not is_batch_norm(layer):
            continue
        if layer not in group_norms:
            group_norms[layer] = _make_group_norm(layer, groups)
        copied.set_submodule(name, group_norms[layer])
    return copied


def _make_group_norm(layer: BatchNorm, max_groups: int) -> nn.GroupNorm:
    """Return the GroupNorm that replaces `layer` and takes over its parameters."""
    channels = layer.num_features
    limit = 1
    if not isinstance(layer, nn.BatchNorm1d):
        limit = max(1, min(max_groups, channels // 2))
    num_groups = max(count for count in range(1, limit + 1) if channels % count == 0)
    norm = nn.GroupNorm(num_groups, channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        # The layer is part of a copy, so its parameters may move.
        norm.weight = layer.weight
        norm.bias = layer.bias
    return norm.train(layer.training)
