"""Personalize, export and use models from the folder of a run.

A personalized model is a folder of its own:

    model.safetensors  the state dict, with all parameters and buffers
    personalized.json  how the model is made, and what its inputs look like
    own_model.py       a copy of the user's model file, if there is one
    manifest.json      size and SHA-256 of these files, which are verified when they are read
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import field_serializer

from fedtailor.core.task import Task
from fedtailor.core.types import Params, ServerState
from fedtailor.data.builtin.npz import read_npz
from fedtailor.data.dataset import ExampleSpec
from fedtailor.engines.context import EngineContext
from fedtailor.engines.sequential import SequentialEngine
from fedtailor.errors import InputError, require, suggest_name
from fedtailor.personalization.personal_model import PersonalModel, personalize_model
from fedtailor.storage.atomic import explain_disk_errors, replace_folder, write_bytes
from fedtailor.storage.files import encode_tensors, parse_tensors
from fedtailor.storage.manifest import ListedFolder
from fedtailor.storage.typed_json import encode_model, parse_versioned
from fedtailor.training import from_config
from fedtailor.training.config import RunConfig
from fedtailor.training.record.dataset_summary import require_same_data
from fedtailor.training.run_dir import CUSTOM_MODEL_FILE, ConfigFile, RunDir
from fedtailor.training.trained_model import load_trained_model, restore_server_state

PREDICT_BATCH_SIZE = 1024
"""Number of examples predicted at a time."""

MODEL_FILE = "model.safetensors"
METADATA_FILE = "personalized.json"
MODEL_KIND = "model"
"""What the manifest says that the folder of a personalized model holds."""

_MAX_SUGGESTED_CLIENTS = 50
"""Number of clients whose names are compared with an unknown one."""


class PersonalModelFile(ConfigFile):
    """The content of `personalized.json`."""

    example_spec: ExampleSpec

    @field_serializer("example_spec")
    def _serialize_example_spec(self, example_spec: ExampleSpec) -> dict[str, Any]:
        return example_spec._asdict()


def personalize(out: Path, data: Path, to: Path) -> PersonalModel:
    """Personalize a run's model on an unseen client's examples and write it to a folder.

    Args:
        out: The folder of the run.
        data: An .npz file with the examples x and y.
        to: The folder of the personalized model, which must be new or empty.
    """
    _require_empty(to)
    arrays = read_npz(data, ("x", "y"))
    model = personalize_model(load_trained_model(out), arrays["x"], arrays["y"])
    _write_model(model, RunDir(out).read_config(), out, to)
    return model


def export_client(out: Path, client: str, to: Path) -> PersonalModel:
    """Write the personalized model of one of a run's clients to a folder.

    It is the model that the run's scores are of: personalized on the client's data, from its state.

    Args:
        out: The folder of the run.
        client: Name of the client.
        to: The folder of the model, which must be new or empty.
    """
    _require_empty(to)
    run_dir = RunDir(out)
    config = run_dir.read_config()
    record = run_dir.read_stored_record()
    context = from_config.build_context(config, from_config.load_dataset(config), out)
    require_same_data(record, context.data)
    state = restore_server_state(
        run_dir, record, context.init_server_state(), context.method, context.client_states
    )
    params = _personalize_client(context, state, client)
    model = PersonalModel(context.task, context.data.example_spec, params)
    _write_model(model, config, out, to)
    return model


def _personalize_client(context: EngineContext, state: ServerState, client: str) -> Params:
    names = context.data.client_names.tolist()
    if client not in names:
        raise InputError(
            f"There is no client '{client}' in data set '{context.data.name}'; "
            f"{suggest_name(client, names[:_MAX_SUGGESTED_CLIENTS])}"
        )
    return SequentialEngine(context).personalize(state, names.index(client))


def predict(model_dir: Path, data: Path) -> NDArray[Any]:
    """Return a personalized model's predictions for the examples x of an .npz file."""
    x = read_npz(data, ("x",))["x"]
    model = load_personal_model(model_dir)
    require(x.ndim > 0 and len(x) > 0, f"predict: '{data}' holds no examples.")
    predictions = [
        model.predict(x[start : start + PREDICT_BATCH_SIZE], first_example=start)
        for start in range(0, len(x), PREDICT_BATCH_SIZE)
    ]
    return np.concatenate(predictions)


def load_personal_model(model_dir: Path, trust_code: bool = False) -> PersonalModel:
    """Load a personalized model from its folder.

    Args:
        model_dir: The folder.
        trust_code: Whether the model's file in it, if there is one, may be run from now on. Without
            this it is run only if this machine has run the same file before.
    """
    require(
        (model_dir / METADATA_FILE).exists(),
        f"'{model_dir}' holds no personalized model: there is no {METADATA_FILE} in it.",
    )
    if trust_code:
        from_config.trust_folder(model_dir)
    metadata = _read_metadata(model_dir)
    task = from_config.build_task(metadata.config, metadata.example_spec, model_dir)
    tensors = parse_tensors(model_dir / MODEL_FILE, ListedFolder(model_dir).read(MODEL_FILE))
    missing_names = [
        name
        for name, value in task.params.items()
        if name not in tensors or tensors[name].shape != value.shape
    ]
    require(
        not missing_names,
        f"'{model_dir}/{MODEL_FILE}' lacks {missing_names}; it is not the model that "
        f"{METADATA_FILE} names.",
    )
    constants = {name: tensors.get(name, value) for name, value in task.constants.items()}
    params = {name: tensors[name] for name in task.params}
    return PersonalModel(replace(task, constants=constants), metadata.example_spec, params)


def _read_metadata(model_dir: Path) -> PersonalModelFile:
    content = ListedFolder(model_dir).read(METADATA_FILE)
    return parse_versioned(model_dir / METADATA_FILE, content, PersonalModelFile)


def _require_empty(folder: Path) -> None:
    require(not folder.exists() or folder.is_dir(), f"'{folder}' is a file; choose another folder.")
    require(
        not folder.exists() or not any(folder.iterdir()),
        f"'{folder}' is not empty; choose another folder.",
    )


def _write_model(model: PersonalModel, config: RunConfig, out: Path, to: Path) -> None:
    """Write a personalized model to a folder, all or nothing.

    Args:
        model: The model.
        config: Configuration of the run.
        out: The folder of the run, which may have the file of the user's model.
        to: The folder of the model.
    """
    contents = {
        METADATA_FILE: encode_model(
            PersonalModelFile(config=config, example_spec=model.example_spec)
        ),
        MODEL_FILE: encode_tensors(dict(model.to_module().state_dict())),
    }
    if ":" in config.model:
        contents[CUSTOM_MODEL_FILE] = ListedFolder(out).read(CUSTOM_MODEL_FILE)
    with (
        explain_disk_errors(to, "no part of the model was left there."),
        replace_folder(to.resolve()) as temp_dir,
    ):
        ListedFolder(temp_dir).create(MODEL_KIND, contents)


def write_predictions(path: Path, predictions: NDArray[Any]) -> None:
    """Write predictions as CSV, a line for each example.

    Columns are the example's number and the predictions, one column for each output. Booleans are
    written as 0 and 1.
    """
    if predictions.dtype.kind == "b":
        predictions = predictions.astype(int)
    rows = predictions.reshape(len(predictions), -1)
    num_outputs = rows.shape[1]
    if num_outputs == 1:
        names = ["prediction"]
    else:
        names = [f"prediction_{i}" for i in range(num_outputs)]
    lines = [",".join(["example", *names])]
    for number, row in enumerate(rows.tolist()):
        lines.append(",".join([str(number), *map(str, row)]))
    content = "\n".join(lines) + "\n"
    with explain_disk_errors(path, "no part of the predictions was left there."):
        write_bytes(path, content.encode())


def format_load_snippet(to: Path) -> str:
    """Return three lines of PyTorch that load a personalized model, whatever folder they run in."""
    model_dir = to.resolve()
    metadata = _read_metadata(model_dir)
    config = metadata.config
    factory = from_config.get_model_factory(config, metadata.example_spec, model_dir)
    if ":" in config.model:
        name = config.model.rpartition(":")[2]
        call = f"{name}().eval_module" if isinstance(factory(), Task) else f"{name}()"
        make_line = (
            f"import sys; sys.path.insert(0, {str(model_dir)!r}); from own_model import {name}; "
            f"model = {call}"
        )
    else:
        call = factory.format_call()
        make_line = f"import torch, fedtailor.models; model = fedtailor.models.{call}"
    if config.precision == "float64":
        make_line += ".double()"
    import_line = "from safetensors.torch import load_file"
    load_line = f"model.load_state_dict(load_file({str(model_dir / MODEL_FILE)!r}))"
    return "\n".join([make_line, import_line, load_line])
