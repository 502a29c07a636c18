"""How curved users' losses are at the model of a finished run: prints the largest eigenvalue of
each user's Hessian.

python studies/per_fedavg/curvature.py OUT/fedavg-seed0 [USERS]
"""

import sys

import numpy as np
import torch
from safetensors.torch import load_file

from fedtailor.data.batching import BatchIndices
from fedtailor.inspection.statistics import estimate_smoothness
from fedtailor.training import from_config
from fedtailor.training.run_dir import RunDir


def main() -> None:
    folder, users = RunDir(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 8
    spec = folder.read_config()
    data = from_config.load_dataset(spec)
    setting = from_config.build_context(spec, data)
    params, site = load_file(folder.path / "model.safetensors"), setting.make_client_dataset()
    for user in np.linspace(0, data.clients.count - 1, users).astype(int):
        rows = torch.from_numpy(data.clients.splits["train"].get_rows(user))
        found = estimate_smoothness(
            setting.task, params, site.decode(site.columns, _place(rows)), steps=40
        )
        print(f"{data.client_names[user]}: {found:.0f}", flush=True)


def _place(rows: torch.Tensor) -> BatchIndices:
    return BatchIndices(
        rows, torch.ones(len(rows), dtype=torch.bool), torch.zeros((), dtype=torch.int64)
    )


if __name__ == "__main__":
    main()
