"""What is trained: the sets, the networks, and the numbers that both sides share."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anchor import pfllib_split
from anchor.plain_loops import LOOPS, Settings
from fedtailor import methods
from fedtailor.data import ClientExamples, FederatedDataset, Split, load_digits
from fedtailor.data.builtin.npz import read_npz
from fedtailor.data.sources.install import open_dataset
from fedtailor.errors import require

Images = tuple[NDArray[np.uint8], NDArray[np.int64]]

PUBLISHED_ROUNDS = 2000


class Case(NamedTuple):
    """A set, split as PFLlib splits it, and how it is trained on."""

    name: str
    make_net: Callable[[], nn.Module]
    scale: float  # factor of the bytes of an image
    rounds: int
    lr: float
    eval_every: int  # rounds between two evaluations
    least_examples: int = 1  # of every client, train and test together
    batch: int = 10
    dtype: torch.dtype = torch.float32


class Center(nn.Module):
    """Maps inputs from [0, 1] to [-1, 1], as PFLlib normalizes its images."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the centered inputs."""
        return 2 * x - 1


def small_mlp() -> nn.Sequential:
    """Return 64-32-10 with ReLU, for the digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def four_layer_cnn(channels: int, num_features: int) -> nn.Sequential:
    """Return the network of the published tables: two convolutions and two dense layers.

    Args:
        channels: Channels of an image.
        num_features: Numbers that are left of an image after both convolutions.
    """
    return nn.Sequential(
        Center(),
        nn.Conv2d(channels, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(num_features, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


CASES = {
    "digits": Case(
        "digits",
        small_mlp,
        scale=1 / 16,
        rounds=50,
        lr=0.05,
        eval_every=1,
        least_examples=8,
        dtype=torch.float64,
    ),
    "cifar10": Case(
        "cifar10",
        lambda: four_layer_cnn(3, 1600),
        scale=1 / 255,
        rounds=PUBLISHED_ROUNDS,
        lr=0.005,
        eval_every=10,
    ),
    "fashion-mnist": Case(
        "fashion-mnist",
        lambda: four_layer_cnn(1, 1024),
        scale=1 / 255,
        rounds=PUBLISHED_ROUNDS,
        lr=0.005,
        eval_every=10,
    ),
}

OWN_HPARAMS: dict[str, dict[str, Any]] = {
    "fedprox": {"lam": 0.1},
    "per-fedavg": {"variant": "fo", "finetune_steps": 1},
    "pfedme": {"lam": 15.0, "inner_lr": 0.02, "inner_steps": 5},
    "ditto": {"lam": 1.0, "personal_epochs": 1},
    "apfl": {"mixing": 0.5},
    "fedrep": {"head_epochs": 1},
    "local": {"when": "sampled"},
}
"""Hyper-parameters of methods beside the step size, the batch and one epoch a round."""

SYMBOLS = {"mixing": "alpha"}
"""What a hyper-parameter of this project is called in the loops, if not by its own name."""


def make_hparams(method: str, case: Case) -> dict[str, Any]:
    """Return the hyper-parameters of this project's method.

    Nothing is fine-tuned but by Per-FedAvg, whose one step is part of the method. Clients weigh by
    their examples, as in PFLlib, where the method has the choice and its paper does not exclude it.
    """
    hparams: dict[str, Any] = {
        "lr": case.lr,
        "batch": case.batch,
        "epochs": 1,
        "finetune_epochs": 0,
        **OWN_HPARAMS.get(method, {}),
    }
    if method == "per-fedavg":
        hparams["alpha"] = case.lr
    known = {field.name for field in fields(methods.load_method_module(method).HParams)}
    if "weight_by" in known and method != "scaffold":
        hparams["weight_by"] = "examples"
    return hparams


def make_loop_settings(method: str, case: Case) -> Settings:
    """Return the same numbers for the plain loop."""
    named = {SYMBOLS.get(name, name): value for name, value in make_hparams(method, case).items()}
    known = {field.name for field in fields(Settings)}
    return Settings(**{name: value for name, value in named.items() if name in known})


def load_images(case: Case, source: str | None) -> Images:
    """Return all images of a set with their labels, the canonical train part first.

    Args:
        case: The set.
        source: An `.npz` file with x_train, y_train, x_test and y_test; None: the set of that name
            that `fedtailor data add` has installed. The digits come with the library.
    """
    if case.name == "digits":
        x, y = load_digits()
        return x.reshape(-1, 1, 8, 8), y
    if source is None:
        columns = open_dataset(case.name).columns
        order = np.argsort(columns["is_test"], kind="stable")
        return np.asarray(columns["x"])[order], columns["y"][order].astype(np.int64)
    arrays = read_npz(source, ("x_train", "y_train", "x_test", "y_test"))
    x = np.concatenate([arrays["x_train"], arrays["x_test"]])
    y = np.concatenate([arrays["y_train"], arrays["y_test"]])
    if x.ndim == 3:
        x = x[..., None]
    require(
        x.ndim == 4 and len(x) == len(y),
        f"'{source}' must have a label for each image, and images [height, width, channels] or "
        f"[height, width], got shapes {list(y.shape)} and {list(x.shape)}.",
    )
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)), y.astype(np.int64)


def build_dataset(
    case: Case, images: Images, num_clients: int = pfllib_split.NUM_CLIENTS, share: float = 1.0
) -> FederatedDataset:
    """Return the clients of PFLlib's split, all of whom take part.

    Args:
        case: The set.
        images: Its images and labels.
        num_clients: Number of clients.
        share: Share of each client's train and test examples that is kept, at least one of each
            part that has any; for trying out.
    """
    x, y = images
    clients = pfllib_split.split(
        y, num_clients=num_clients, least_examples=case.least_examples, seed=pfllib_split.SEED
    )
    splits = {}
    for part in ("train", "test"):
        parts = [getattr(client, part) for client in clients]
        kept = [rows[: max(1, round(share * len(rows)))] for rows in parts]
        offsets = np.cumsum([0, *(len(rows) for rows in kept)])
        splits[part] = Split(np.concatenate(kept), offsets)
    all_clients = np.arange(num_clients)
    no_clients = all_clients[:0]
    return FederatedDataset(
        name=case.name,
        clients=ClientExamples(x, y, splits),
        client_names=all_clients.astype(str),
        groups={
            "train": all_clients,
            "participating": all_clients,
            "validation": no_clients,
            "unseen": no_clients,
        },
        server=None,
        classes=10,
        scale=case.scale,
    )


def check_methods(names: list[str]) -> None:
    """Exit with a sentence if there is no loop of a method."""
    unknown = [name for name in names if name not in LOOPS]
    if unknown:
        known = ", ".join(LOOPS)
        raise SystemExit(f"agree: there is no loop of {', '.join(unknown)}; there are {known}.")
