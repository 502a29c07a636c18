"""Personalize, export and use models from a run's folder.

A personal model is a folder of its own: `model.safetensors`, the whole state dict, and `personalized.json`, which says
how to make the model and what its inputs look like.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedtailor import methods, prng
from fedtailor.core.task import Task
from fedtailor.core.types import Method, ServerState, Tree
from fedtailor.data.builtin.npz import read_npz
from fedtailor.data.dataset import ExampleSpec
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.engines.context import EngineContext
from fedtailor.engines.scoring import select_offered
from fedtailor.engines.sequential import resolve_client_state, run_single_client
from fedtailor.errors import InputError, require, suggest_name
from fedtailor.personalization.personal_model import PersonalModel, personalize_model
from fedtailor.prng.streams import Stream
from fedtailor.storage.atomic import explain_disk_errors, replace_folder, write_bytes
from fedtailor.storage.files import read_json, read_tensors, write_json, write_tensors
from fedtailor.training import build
from fedtailor.training.checkpoint import CheckpointManager
from fedtailor.training.config import RunConfig
from fedtailor.training.dataset_summary import (
    example_spec_from_json,
    example_spec_to_json,
    require_same_data,
)
from fedtailor.training.run_dir import CUSTOM_MODEL_FILE, FORMAT, RunDir, read_config_file

PREDICT_BATCH_SIZE = 1024
"""Examples predicted at a time."""


class TrainedRun(NamedTuple):
    """What a run's folder holds, without its data."""

    config: RunConfig
    example_spec: ExampleSpec
    task: Task
    method: Method
    state: ServerState
    offered_states: Tree | None  # memories that a newcomer may try


def load_trained_run(out: Path) -> TrainedRun:
    """The model of a run, as of its last checkpoint."""
    run_dir = RunDir(out)
    config, record = run_dir.read_config(), run_dir.read_record()
    data_summary = record["data"]
    example_spec = example_spec_from_json(data_summary["example_spec"])
    task = build.build_task(config, example_spec, out)
    method = methods.build(config.method, task, **record["hparams"])
    zero = torch.zeros((), dtype=torch.int64)
    initial_state = ServerState(
        task.params, zero, prng.key(config.seed, Stream.SERVER), method.init(task.params)
    )
    client_states = ClientStateStore(len(data_summary["clients"]))
    state = _restore_server_state(out, initial_state, method, client_states)
    offered_ids = select_offered(
        client_states,
        np.array(data_summary["groups"]["train"]),
        method.num_offered_states,
        config.seed,
    )
    offered_states = (
        client_states.gather(offered_ids, method.init_client_state(state))
        if method.num_offered_states and len(offered_ids)
        else None
    )
    return TrainedRun(config, example_spec, task, method, state, offered_states)


def _restore_server_state(
    out: Path, initial_state: ServerState, method: Method, client_states: ClientStateStore
) -> ServerState:
    restored = CheckpointManager(out).restore_latest(
        initial_state, client_states, method.init_client_state(initial_state)
    )
    if restored is None:
        raise InputError(f"The run in '{out}' has no checkpoint yet.")
    require(
        not restored.skipped,
        f"The run in '{out}' has no whole model: {'; '.join(restored.skipped)}",
    )
    return restored.state


def personalize(out: Path, data: Path, to: Path) -> PersonalModel:
    """Tailors a run's model to the examples x, y of a file, and writes it to a folder."""
    _require_empty(to)
    arrays = read_npz(data, ("x", "y"))
    trained = load_trained_run(out)
    config, example_spec, task, method, state, offered_states = trained
    model = personalize_model(
        method, task, state, example_spec, config.seed, arrays["x"], arrays["y"], offered_states
    )
    _write_model(model, config, out, to)
    return model


def export_client(out: Path, client: str, to: Path) -> PersonalModel:
    """Writes a client's own model, as the run's scores have it: personalized on its data, from its memory."""
    _require_empty(to)
    run_dir = RunDir(out)
    config, record = run_dir.read_config(), run_dir.read_record()
    context = build.build_context(config, build.load_dataset(config), out)
    require_same_data(record, context.data)
    state = _restore_server_state(
        out, context.init_server_state(), context.method, context.client_states
    )
    model = PersonalModel(
        context.task, context.data.example_spec, _personalize_client(context, state, client)
    )
    _write_model(model, config, out, to)
    return model


def _personalize_client(context: EngineContext, state: ServerState, client: str) -> Any:
    ids = context.data.client_names.tolist()
    if client not in ids:
        raise InputError(
            f"There is no client '{client}' in data set '{context.data.name}'; {suggest_name(client, ids[:50])}"
        )
    client_idx = ids.index(client)
    method, key, dataset = (
        context.method,
        context.derive_keys(Stream.PERSONALIZE, 0, [client_idx])[0],
        context.make_client_dataset(),
    )
    shared_input = method.broadcast(state)
    client_input = resolve_client_state(
        context, dataset, shared_input, method.init_client_state(state), client_idx
    )
    return run_single_client(
        method.personalize, shared_input, client_input, dataset, client_idx, key
    )


def predict(model_dir: Path, data: Path) -> np.ndarray:
    """What a tailored model says of the examples x of a file."""
    x = read_npz(data, ("x",))["x"]
    model = load_personal_model(model_dir)
    require(x.ndim > 0 and len(x) > 0, f"predict: '{data}' holds no examples.")
    return np.concatenate(
        [
            model.predict(x[start : start + PREDICT_BATCH_SIZE])
            for start in range(0, len(x), PREDICT_BATCH_SIZE)
        ]
    )


def load_personal_model(model_dir: Path) -> PersonalModel:
    """A tailored model from its folder."""
    require(
        (model_dir / "personalized.json").exists(),
        f"'{model_dir}' holds no tailored model: there is no personalized.json in it.",
    )
    config, example_spec = _read_metadata(model_dir)
    task, tensors = (
        build.build_task(config, example_spec, model_dir),
        read_tensors(model_dir / "model.safetensors"),
    )
    bad_names = [
        name
        for name, value in task.params.items()
        if name not in tensors or tensors[name].shape != value.shape
    ]
    require(
        not bad_names,
        f"'{model_dir}/model.safetensors' lacks {bad_names}; it is not the model that personalized.json names.",
    )
    constants = {name: tensors.get(name, value) for name, value in task.constants.items()}
    return PersonalModel(
        replace(task, constants=constants),
        example_spec,
        {name: tensors[name] for name in task.params},
    )


def _read_metadata(model_dir: Path) -> tuple[RunConfig, ExampleSpec]:
    return read_config_file(model_dir / "personalized.json"), example_spec_from_json(
        read_json(model_dir / "personalized.json")["example_spec"]
    )


def _require_empty(to: Path) -> None:
    require(not to.exists() or to.is_dir(), f"'{to}' is a file; choose another folder.")
    require(
        not to.exists() or not any(to.iterdir()), f"'{to}' is not empty; choose another folder."
    )


def _write_model(model: PersonalModel, config: RunConfig, out: Path, to: Path) -> None:
    with (
        explain_disk_errors(to, "nothing of the model is left there."),
        replace_folder(to.resolve()) as temp_dir,
    ):
        if (out / CUSTOM_MODEL_FILE).exists():
            write_bytes(temp_dir / CUSTOM_MODEL_FILE, (out / CUSTOM_MODEL_FILE).read_bytes())
        write_tensors(temp_dir / "model.safetensors", dict(model.to_module().state_dict()))
        write_json(
            temp_dir / "personalized.json",
            {
                "format": FORMAT,
                "config": config.model_dump(mode="json"),
                "example_spec": example_spec_to_json(model.example_spec),
            },
        )


def write_predictions(path: Path, predictions: np.ndarray) -> None:
    """A line per example: its number and what the model says of it, one column per output."""
    columns = predictions.reshape(len(predictions), -1).astype(
        predictions.dtype if predictions.dtype.kind != "b" else int
    )
    names = (
        ["prediction"]
        if columns.shape[1] == 1
        else [f"prediction_{i}" for i in range(columns.shape[1])]
    )
    lines = [
        ",".join(["example", *names]),
        *(",".join([str(i), *map(str, row)]) for i, row in enumerate(columns.tolist())),
    ]
    with explain_disk_errors(path, "nothing of the predictions is left there."):
        write_bytes(path, ("\n".join(lines) + "\n").encode())


def _format_call(factory: Any) -> str:
    """The call that a bound maker of the list of models is."""
    options = [
        f"{name}=torch.nn.{activation.__name__}" for name, activation in factory.keywords.items()
    ]
    return f"{factory.func.__name__}({', '.join([*map(repr, factory.args), *options])})"


def format_load_snippet(to: Path) -> str:
    """Three lines of PyTorch that load a tailored model, from wherever they are run."""
    model_dir = to.resolve()
    config, example_spec = _read_metadata(model_dir)
    factory = build.get_model_factory(config, example_spec, model_dir)
    if ":" in config.model:
        name = config.model.rpartition(":")[2]
        model_call = f"{name}().eval_module" if isinstance(factory(), Task) else f"{name}()"
        first = f"import sys; sys.path.insert(0, {str(model_dir)!r}); from own_model import {name}; model = {model_call}"
    else:
        first = f"import torch, fedtailor.models; model = fedtailor.models.{_format_call(factory)}"
    double = ".double()" if config.precision == "float64" else ""
    load = f"model.load_state_dict(load_file({str(model_dir / 'model.safetensors')!r}))"
    return "\n".join((first + double, "from safetensors.torch import load_file", load))
