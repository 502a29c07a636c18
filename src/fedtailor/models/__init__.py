"""Models as plain `nn.Module`s, without anything federated; the last layer is the linear head."""

from fedtailor.models.norms import with_group_norm
from fedtailor.models.resnet import resnet18
from fedtailor.models.text import LSTM, language_model, shakespeare, stackoverflow
from fedtailor.models.vision import conv4, fedsim_femnist, fsl_cifar, fsl_emnist, lenet, mlp

__all__ = [
    "LSTM",
    "conv4",
    "fedsim_femnist",
    "fsl_cifar",
    "fsl_emnist",
    "language_model",
    "lenet",
    "mlp",
    "resnet18",
    "shakespeare",
    "stackoverflow",
    "with_group_norm",
]
