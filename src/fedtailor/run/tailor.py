"""Models for people, from a run's folder: tailored to somebody never seen, exported for a client, used to predict.

A tailored model is a folder of its own: `model.safetensors`, the whole state dict, and `tailored.json`, which says how
to make the model and in what units it takes its inputs.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedtailor import keyed, methods
from fedtailor.data.dataset import Units
from fedtailor.data.npz import read_npz
from fedtailor.disk import disk_trouble, replace_folder, write_bytes
from fedtailor.engines.base import Setting, alone, memory_of, offered
from fedtailor.engines.memory import Memory
from fedtailor.errors import InputError, nearest, require
from fedtailor.run import build
from fedtailor.run.checkpoint import Checkpoints
from fedtailor.run.described import listed_units, require_same_data, units_of
from fedtailor.run.files import read_json, read_tensors, write_json, write_tensors
from fedtailor.run.personal import Personal, tailored
from fedtailor.run.record import FORMAT, OWN_MODEL, Folder, spec_in
from fedtailor.run.spec import Spec
from fedtailor.task import Task
from fedtailor.types import Method, State, Tree

BLOCK = 1024
"""Examples predicted at a time."""


class Trained(NamedTuple):
    """What a run's folder holds, without its data."""

    spec: Spec
    units: Units
    task: Task
    method: Method
    state: State
    offered: Tree | None  # memories that a newcomer may try


def load(out: Path) -> Trained:
    """The model of a run, as of its last checkpoint."""
    folder = Folder(out)
    spec, record = folder.spec(), folder.record()
    described = record["data"]
    units = units_of(described["units"])
    task = build.task(spec, units, out)
    method = methods.build(spec.method, task, **record["hyper"])
    zero = torch.zeros((), dtype=torch.int64)
    first = State(task.params, zero, keyed.key(spec.seed, "server"), method.init(task.params))
    memory = Memory(len(described["clients"]))
    state = _last_state(out, first, method, memory)
    tried = offered(memory, np.array(described["groups"]["train"]), method.tries, spec.seed)
    memories = memory.gather(tried, method.new_memory(state)) if method.tries and len(tried) else None
    return Trained(spec, units, task, method, state, memories)


def _last_state(out: Path, first: State, method: Method, memory: Memory) -> State:
    found = Checkpoints(out).latest(first, memory, method.new_memory(first))
    if found is None:
        raise InputError(f"The run in '{out}' has no checkpoint yet.")
    require(not found.passed_over, f"The run in '{out}' has no whole model: {'; '.join(found.passed_over)}")
    return found.state


def personalise(out: Path, data: Path, to: Path) -> Personal:
    """Tailors a run's model to the examples x, y of a file, and writes it to a folder."""
    _require_empty(to)
    arrays = read_npz(data, ("x", "y"))
    trained = load(out)
    spec, units, task, method, state, memories = trained
    made = tailored(method, task, state, units, spec.seed, arrays["x"], arrays["y"], memories)
    _write(made, spec, out, to)
    return made


def export(out: Path, client: str, to: Path) -> Personal:
    """Writes a client's own model, as the run's scores have it: personalised on its data, from its memory."""
    _require_empty(to)
    folder = Folder(out)
    spec, record = folder.spec(), folder.record()
    setting = build.setting(spec, build.dataset(spec), out)
    require_same_data(record, setting.data)
    state = _last_state(out, setting.first_state(), setting.method, setting.memory)
    made = Personal(setting.task, setting.data.units, _of_client(setting, state, client))
    _write(made, spec, out, to)
    return made


def _of_client(setting: Setting, state: State, client: str) -> Any:
    ids = setting.data.ids.tolist()
    if client not in ids:
        raise InputError(
            f"There is no client '{client}' in data set '{setting.data.name}'; {nearest(client, ids[:50])}"
        )
    number = ids.index(client)
    method, key, site = setting.method, setting.keys("personalise", 0, [number])[0], setting.clients()
    sent = method.broadcast(state)
    own = memory_of(setting, site, sent, method.new_memory(state), number)
    return alone(method.personalise, sent, own, site, number, key)


def predict(model: Path, data: Path) -> np.ndarray:
    """What a tailored model says of the examples x of a file."""
    x = read_npz(data, ("x",))["x"]
    found = reopened(model)
    require(x.ndim > 0 and len(x) > 0, f"predict: '{data}' holds no examples.")
    return np.concatenate([found.predict(x[begin : begin + BLOCK]) for begin in range(0, len(x), BLOCK)])


def reopened(model: Path) -> Personal:
    """A tailored model from its folder."""
    require((model / "tailored.json").exists(), f"'{model}' holds no tailored model: there is no tailored.json in it.")
    spec, units = _said(model)
    task, tensors = build.task(spec, units, model), read_tensors(model / "model.safetensors")
    wrong = [name for name, value in task.params.items() if name not in tensors or tensors[name].shape != value.shape]
    require(not wrong, f"'{model}/model.safetensors' lacks {wrong}; it is not the model that tailored.json names.")
    constants = {name: tensors.get(name, value) for name, value in task.constants.items()}
    return Personal(replace(task, constants=constants), units, {name: tensors[name] for name in task.params})


def _said(model: Path) -> tuple[Spec, Units]:
    return spec_in(model / "tailored.json"), units_of(read_json(model / "tailored.json")["units"])


def _require_empty(to: Path) -> None:
    require(not to.exists() or to.is_dir(), f"'{to}' is a file; choose another folder.")
    require(not to.exists() or not any(to.iterdir()), f"'{to}' is not empty; choose another folder.")


def _write(made: Personal, spec: Spec, out: Path, to: Path) -> None:
    with disk_trouble(to, "nothing of the model is left there."), replace_folder(to.resolve()) as fresh:
        if (out / OWN_MODEL).exists():
            write_bytes(fresh / OWN_MODEL, (out / OWN_MODEL).read_bytes())
        write_tensors(fresh / "model.safetensors", dict(made.module().state_dict()))
        write_json(
            fresh / "tailored.json",
            {"format": FORMAT, "spec": spec.model_dump(mode="json"), "units": listed_units(made.units)},
        )


def write_csv(path: Path, answers: np.ndarray) -> None:
    """A line per example: its number and what the model says of it, one column per output."""
    columns = answers.reshape(len(answers), -1).astype(answers.dtype if answers.dtype.kind != "b" else int)
    names = ["prediction"] if columns.shape[1] == 1 else [f"prediction_{i}" for i in range(columns.shape[1])]
    lines = [
        ",".join(["example", *names]),
        *(",".join([str(i), *map(str, row)]) for i, row in enumerate(columns.tolist())),
    ]
    with disk_trouble(path, "nothing of the predictions is left there."):
        write_bytes(path, ("\n".join(lines) + "\n").encode())


def _called(make: Any) -> str:
    """The call that a bound maker of the list of models is."""
    options = [f"{name}=torch.nn.{kind.__name__}" for name, kind in make.keywords.items()]
    return f"{make.func.__name__}({', '.join([*map(repr, make.args), *options])})"


def how_to_load(to: Path) -> str:
    """Three lines of PyTorch that load a tailored model, from wherever they are run."""
    place = to.resolve()
    spec, units = _said(place)
    make = build.maker(spec, units, place)
    if ":" in spec.model:
        name = spec.model.rpartition(":")[2]
        made = f"{name}().evaluating" if isinstance(make(), Task) else f"{name}()"
        first = f"import sys; sys.path.insert(0, {str(place)!r}); from own_model import {name}; model = {made}"
    else:
        first = f"import torch, fedtailor.models; model = fedtailor.models.{_called(make)}"
    double = ".double()" if spec.precision == "float64" else ""
    load = f"model.load_state_dict(load_file({str(place / 'model.safetensors')!r}))"
    return "\n".join((first + double, "from safetensors.torch import load_file", load))
