"""Models for people, from a run's folder: tailored to somebody never seen, exported for a client, used to predict.

A tailored model is a folder of its own: `model.safetensors`, the whole state dict, and `tailored.json`, which says how
to make the model and in what units it takes its inputs.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedtailor import keyed, methods, trees
from fedtailor.data.dataset import Units
from fedtailor.data.npz import read_npz
from fedtailor.engines.base import Setting, alone
from fedtailor.engines.memory import Memory
from fedtailor.errors import InputError, nearest, require
from fedtailor.run import build
from fedtailor.run.checkpoint import Checkpoints
from fedtailor.run.files import disk_trouble, read_json, read_tensors, write_bytes, write_json, write_tensors
from fedtailor.run.fitting import Personal, tailored
from fedtailor.run.record import FORMAT, OWN_MODEL, Folder
from fedtailor.run.spec import Spec
from fedtailor.task import Task
from fedtailor.types import Method, State


class Trained(NamedTuple):
    """What a run's folder holds, without its data."""

    spec: Spec
    units: Units
    task: Task
    method: Method
    state: State


def load(out: Path) -> Trained:
    """The model of a run, as of its last checkpoint."""
    folder = Folder(out)
    spec, units = folder.spec(), _units(folder.record()["data"]["units"])
    task = build.task(spec, units, out)
    method = methods.build(spec.method, task, **spec.hyper)
    zero = torch.zeros((), dtype=torch.int64)
    first = State(task.params, zero, keyed.key(spec.seed, "server"), method.init(task.params))
    count = len(folder.record()["data"]["clients"])
    found = Checkpoints(out).latest(first, Memory(count), method.new_memory(first))
    require(found is not None, f"The run in '{out}' has no checkpoint yet.")
    assert found is not None
    return Trained(spec, units, task, method, found.state)


def personalise(out: Path, data: Path, to: Path) -> Personal:
    """Tailors a run's model to the examples x, y of a file, and writes it to a folder."""
    arrays = read_npz(data, ("x", "y"))
    trained = load(out)
    made = tailored(
        trained.method, trained.task, trained.state, trained.units, trained.spec.seed, arrays["x"], arrays["y"]
    )
    _write(made, trained.spec, out, to)
    return made


def export(out: Path, client: str, to: Path) -> Personal:
    """Writes a client's own model, as the run's scores have it: personalised on its data, from its memory."""
    folder = Folder(out)
    spec = folder.spec()
    setting = build.setting(spec, build.dataset(spec), out)
    first = setting.first_state()
    found = Checkpoints(out).latest(first, setting.memory, setting.method.new_memory(first))
    require(found is not None, f"The run in '{out}' has no checkpoint yet.")
    assert found is not None
    made = Personal(setting.task, setting.data.units, _of_client(setting, found.state, client))
    _write(made, spec, out, to)
    return made


def _of_client(setting: Setting, state: State, client: str) -> Any:
    ids = setting.data.ids.tolist()
    if client not in ids:
        raise InputError(
            f"There is no client '{client}' in data set '{setting.data.name}'; {nearest(client, ids[:50])}"
        )
    number = ids.index(client)
    method, key = setting.method, setting.keys("personalise", 0, [number])[0]
    memory = setting.memory.gather(np.array([number]), method.new_memory(state))
    return alone(method.personalise, method.broadcast(state), trees.row(memory, 0), setting.clients(), number, key)


def predict(model: Path, data: Path) -> np.ndarray:
    """What a tailored model says of the examples x of a file."""
    arrays = read_npz(data, ("x",))
    found = reopened(model)
    x = arrays["x"]
    require(
        x.ndim > 0 and x.shape[1:] == found.units.shape,
        f"predict: an example must have the shape {found.units.shape} of the training data, got x of shape {x.shape}.",
    )
    blocks = [found.predict(x[begin : begin + 1024]) for begin in range(0, len(x), 1024)]
    return np.concatenate(blocks) if blocks else np.zeros(0)


def reopened(model: Path) -> Personal:
    """A tailored model from its folder."""
    require((model / "tailored.json").exists(), f"'{model}' holds no tailored model: there is no tailored.json in it.")
    content = read_json(model / "tailored.json")
    require(content.get("format") == FORMAT, f"'{model}' has format {content.get('format')}, not {FORMAT}.")
    spec, units = Spec.model_validate(content["spec"]), _units(content["units"])
    task, tensors = build.task(spec, units, model), read_tensors(model / "model.safetensors")
    wrong = sorted({*task.params} - {*tensors})
    require(not wrong, f"'{model}/model.safetensors' lacks {wrong}; it is not the model that tailored.json names.")
    constants = {name: tensors.get(name, value) for name, value in task.constants.items()}
    return Personal(replace(task, constants=constants), units, {name: tensors[name] for name in task.params})


def _write(made: Personal, spec: Spec, out: Path, to: Path) -> None:
    require(not to.exists() or not any(to.iterdir()), f"'{to}' is not empty; choose another folder.")
    with disk_trouble(to):
        to.mkdir(parents=True, exist_ok=True)
        if (out / OWN_MODEL).exists():
            shutil.copy(out / OWN_MODEL, to / OWN_MODEL)
        state = made.module().state_dict()
        write_tensors(to / "model.safetensors", dict(state))
        units = made.units._asdict() | {"shape": list(made.units.shape)}
        write_json(to / "tailored.json", {"format": FORMAT, "spec": spec.model_dump(mode="json"), "units": units})


def write_csv(path: Path, answers: np.ndarray) -> None:
    """A line per example: its number and what the model says of it, one column per output."""
    columns = answers.reshape(len(answers), -1).astype(answers.dtype if answers.dtype.kind != "b" else int)
    names = ["prediction"] if columns.shape[1] == 1 else [f"prediction_{i}" for i in range(columns.shape[1])]
    lines = [
        ",".join(["example", *names]),
        *(",".join([str(i), *map(str, row)]) for i, row in enumerate(columns.tolist())),
    ]
    with disk_trouble(path.parent):
        write_bytes(path, ("\n".join(lines) + "\n").encode())


def _units(content: dict[str, Any]) -> Units:
    return Units(tuple(content["shape"]), content["classes"], content["scale"], content["tokens"])


def how_to_load(spec: Spec, units: Units, to: Path) -> str:
    """Three lines of PyTorch that load a tailored model."""
    if ":" in spec.model:
        name = spec.model.rpartition(":")[2]
        make = f"from own_model import {name}; model = {name}()  # own_model.py is in {to}"
    else:
        maker = build.maker(spec, units)
        make = f"import fedtailor.models; model = fedtailor.models.mlp{getattr(maker, 'args', ())!r}"
    return "\n".join(
        (
            make,
            "from safetensors.torch import load_file",
            f"model.load_state_dict(load_file({str(to / 'model.safetensors')!r}))",
        )
    )
