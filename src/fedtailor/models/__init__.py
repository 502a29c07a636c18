"""Models: plain `nn.Module`s that know nothing of federated learning."""

from fedtailor.models.norms import with_group_norm
from fedtailor.models.vision import mlp

__all__ = ["mlp", "with_group_norm"]
