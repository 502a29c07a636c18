"""How curved users' losses are at the model of a finished run: prints the largest eigenvalue of each user's Hessian.

python studies/per_fedavg/curvature.py OUT/fedavg-seed0 [USERS]
"""

import sys

import numpy as np
import torch
from safetensors.torch import load_file

from fedtailor.analysis import smoothness
from fedtailor.data.batching import Place
from fedtailor.run import build
from fedtailor.run.record import Folder


def main() -> None:
    folder, users = Folder(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 8
    spec = folder.spec()
    data = build.dataset(spec)
    setting = build.setting(spec, data)
    params, site = load_file(folder.path / "model.safetensors"), setting.clients()
    for user in np.linspace(0, data.clients.count - 1, users).astype(int):
        rows = torch.from_numpy(data.clients.splits["train"].of(user))
        found = smoothness(setting.task, params, site.decode(site.columns, _place(rows)), steps=40)
        print(f"{data.ids[user]}: {found:.0f}", flush=True)


def _place(rows: torch.Tensor) -> Place:
    return Place(rows, torch.ones(len(rows), dtype=torch.bool), torch.zeros((), dtype=torch.int64))


if __name__ == "__main__":
    main()
