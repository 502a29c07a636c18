"""The folder of a personalized model whose files are not what was written is refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from damage import edit_json, iterate_mutations, list_files
from fedtailor.data.builtin.npz import read_npz
from fedtailor.errors import InputError
from fedtailor.personalization.service import export_client, format_load_snippet, predict
from fedtailor.training import from_config
from fedtailor.training.runner import start_run
from interruptions import small

MODEL_SOURCE = """
from torch import nn


class Net(nn.Linear):
    def __init__(self):
        super().__init__(64, 10)

    def forward(self, x):
        return super().forward(x.flatten(1))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model of a client, and inputs."""
    place = tmp_path_factory.mktemp("place")
    (place / "mine.py").write_text(MODEL_SOURCE)
    config = small("method=fedavg", "rounds=2", f"model={place / 'mine.py'}:Net")
    start_run(config, place / "out")
    export_client(place / "out", "0", place / "model")
    np.savez(place / "x.npz", x=from_config.load_dataset(config).clients.x)
    return place


def test_every_damage_of_a_file_is_noticed(place: Path, tmp_path: Path) -> None:
    refusals = []
    names = list_files(place / "model")
    assert names == ["manifest.json", "model.safetensors", "own_model.py", "personalized.json"]
    for seed, name in enumerate(names):
        for _, content in iterate_mutations((place / "model" / name).read_bytes(), seed):
            model_dir = shutil.copytree(place / "model", tmp_path / "model")
            (model_dir / name).write_bytes(content)
            with pytest.raises(InputError) as caught:
                predict(model_dir, place / "x.npz")
            refusals.append(str(caught.value))
            shutil.rmtree(model_dir)
    assert len(refusals) >= 18
    assert not any("\n" in refusal for refusal in refusals)


def test_one_bit_of_a_weight_is_noticed(place: Path, tmp_path: Path) -> None:
    model_dir = shutil.copytree(place / "model", tmp_path / "model")
    path = model_dir / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        predict(model_dir, place / "x.npz")
    assert str(caught.value) == (
        f"'{path}' is not what was written; put back the file that was written."
    )


def test_edits_are_refused(place: Path, tmp_path: Path) -> None:
    model_dir = shutil.copytree(place / "model", tmp_path / "model")
    edit_json(model_dir / "personalized.json", "example_spec.scale", 0.5)
    for use in (
        lambda: predict(model_dir, place / "x.npz"),
        lambda: format_load_snippet(model_dir),
    ):
        with pytest.raises(InputError, match=r"^'.*personalized.json' is not what was written; "):
            use()


def test_a_folder_of_another_version_gets_a_sentence(place: Path, tmp_path: Path) -> None:
    model_dir = shutil.copytree(place / "model", tmp_path / "model")
    (model_dir / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"manifest.json' is missing: another version of fedtail"):
        predict(model_dir, place / "x.npz")


def test_a_model_of_an_edited_run_is_not_exported(place: Path, tmp_path: Path) -> None:
    out = shutil.copytree(place / "out", tmp_path / "out")
    path = out / "own_model.py"
    path.write_text(path.read_text().replace("flatten(1)", "flatten(1) * 2"))
    with pytest.raises(InputError, match=r"^'.*own_model.py' is not what was written; "):
        export_client(out, "0", tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_the_whole_model_predicts(place: Path) -> None:
    num_examples = len(read_npz(place / "x.npz", ("x",))["x"])
    assert len(predict(place / "model", place / "x.npz")) == num_examples
