"""The networks of the comparison in plain torch, for every way that trains with it."""

from collections.abc import Callable

import torch
from torch import nn

from peers.protocol import Weights


def cnn() -> nn.Sequential:
    """FedSIM's network for FEMNIST, 1.2 million parameters, without its dropout so that weights can
    be compared.
    """
    features = (
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    return nn.Sequential(*features, nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 62))


def mlp() -> nn.Sequential:
    """784-80-60-10 with ELU, 68 thousand parameters."""
    hidden = (nn.Linear(784, 80), nn.ELU(), nn.Linear(80, 60), nn.ELU())
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(60, 10))


NETS: dict[str, Callable[[], nn.Sequential]] = {"cnn": cnn, "mlp": mlp}


def loaded(net: str, weights: Weights, device: str = "cpu") -> nn.Sequential:
    """A network with these weights, whose products a GPU may round to tf32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    model = NETS[net]()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    return model.to(device)


def weights_of(model: nn.Module) -> Weights:
    """The weights of a network."""
    return {name: value.detach().cpu().numpy() for name, value in model.named_parameters()}


def wait(device: str) -> None:
    """Returns when the device has done all that it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
