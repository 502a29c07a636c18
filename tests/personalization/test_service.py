"""Models for people: equal to what the run scored and to what Python gives, loadable anywhere,
whole or not there.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedtailor as ft
from fedtailor import models
from fedtailor.errors import InputError
from fedtailor.personalization.service import (
    export_client,
    format_load_snippet,
    load_personal_model,
    personalize,
    predict,
    write_predictions,
)
from fedtailor.storage.manifest import ListedFolder
from fedtailor.training import from_config
from fedtailor.training.overrides import read_run_config
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import start_run
from interruptions import Fault, faulty, full_disk, small
from known import known

RUNS = {
    "client_state": ["method=local", "when=sampled"],
    "server state": ["method=fedavg", "server_optimizer=adam"],
    "double": ["method=fedprox", "precision=float64", "client_state=files"],
    "pool": ["method=centralized", "engine=sequential"],
    "server data": ["method=fedsim", "model=linear"],
}
OWN = """
import torch
from torch import nn

from fedtailor.core.task import classification


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(64, 10, bias=False), nn.Linear(10, 10, bias=False)
        self.again = nn.Linear(10, 10, bias=False)
        self.again.weight = self.head.weight
        self.register_buffer("shift", torch.linspace(0, 1, 64))

    def forward(self, x):
        return self.again(self.head(torch.tanh(self.body(x.flatten(1) + self.shift))))


def task():
    return classification(Net())
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of every kind, and two of models of one's own whose file is gone by now."""
    place = tmp_path_factory.mktemp("runs")
    made = {name: place / name for name in (*RUNS, "own", "task")}
    for name, words in RUNS.items():
        start_run(small("rounds=3", *words), made[name])
    (place / "mine.py").write_text(OWN)
    for name, maker in (("own", "Net"), ("task", "task")):
        start_run(
            small("rounds=2", "method=fedavg", f"model={place / 'mine.py'}:{maker}"), made[name]
        )
    (place / "mine.py").unlink()
    return made


NAMES = pytest.mark.parametrize("name", [*RUNS, "own", "task"])


def examples(out: Path, client: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    data = from_config.load_dataset(RunDir(out).read_config())
    rows = data.clients.splits[split].get_rows(data.client_names.tolist().index(client))
    return data.clients.x[rows], data.clients.y[rows]


def loaded(to: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Path) -> nn.Module:
    """The model that the three printed lines make, in another working directory."""
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_model", raising=False)
    lines, found = format_load_snippet(Path(os.path.relpath(to))), dict[str, Any]()
    assert len(lines.splitlines()) == 3
    exec(lines, found)
    model: nn.Module = found["model"]
    return model.eval()


@NAMES
def test_an_exported_model_is_the_one_that_was_scored(
    name: str, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group_scores = known(RunDir(runs[name]).read_record().scores)
    for group in ("participating", "unseen"):
        scores = group_scores[group]
        for place in (0, len(scores.ids) - 1):
            client = scores.ids[place]
            to = tmp_path / f"{group}{place}"
            made = export_client(runs[name], client, to)
            x, y = examples(runs[name], client, "test")
            hits = (made.predict(x) == y).mean()
            assert hits == pytest.approx(scores.after["accuracy"][place], abs=1e-6)
            inputs = torch.as_tensor(x).to(made.task.dtype) * made.example_spec.scale
            outputs = loaded(to, monkeypatch, tmp_path)(inputs)
            loss = nn.functional.cross_entropy(outputs, torch.as_tensor(y).long()).item()
            assert loss == pytest.approx(scores.after["loss"][place], rel=1e-4, abs=1e-6)
            assert torch.equal(outputs, made.compute_outputs(x))


@pytest.mark.parametrize("name", ["client_state", "server state", "server data"])
def test_personalize_is_that_of_python(name: str, runs: dict[str, Path], tmp_path: Path) -> None:
    spec = RunDir(runs[name]).read_config()
    data = from_config.load_dataset(spec)
    net = from_config.get_model_factory(spec, data.example_spec)
    fitted = ft.fit(
        spec.method,
        net,
        data,
        rounds=spec.rounds,
        cohort=spec.cohort,
        seed=spec.seed,
        **spec.hparams,
    )
    scores = known(RunDir(runs[name]).read_record().scores)
    x, y = examples(runs[name], scores["unseen"].ids[0], "train")
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    made = personalize(runs[name], tmp_path / "mine.npz", tmp_path / "model")
    expected, again = fitted.personalize(x, y), load_personal_model(tmp_path / "model")
    for key, value in expected.params.items():
        assert torch.equal(value, made.params[key])
        assert torch.equal(value, again.params[key])


@NAMES
def test_predictions_are_those_of_the_model(
    name: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    client = known(RunDir(runs[name]).read_record().scores)["participating"].ids[1]
    made = export_client(runs[name], client, tmp_path / "model")
    x = np.concatenate([examples(runs[name], client, split)[0] for split in ("train", "test")] * 40)
    np.savez(tmp_path / "x.npz", x=x)
    answers = predict(tmp_path / "model", tmp_path / "x.npz")
    assert np.array_equal(answers, made.compute_outputs(x).argmax(1).numpy())
    write_predictions(tmp_path / "out.csv", answers)
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "example,prediction"
    assert lines[1:] == [f"{number},{answer}" for number, answer in enumerate(answers)]
    assert len(x) > 1024


def test_several_outputs_are_several_columns(tmp_path: Path) -> None:
    write_predictions(tmp_path / "a.csv", np.array([[0.5, -1.25], [3.0, 1e-9]]))
    assert (
        tmp_path / "a.csv"
    ).read_text() == "example,prediction_0,prediction_1\n0,0.5,-1.25\n1,3.0,1e-09\n"
    write_predictions(tmp_path / "b.csv", np.array([[True, False]]))
    assert (tmp_path / "b.csv").read_text() == "example,prediction_0,prediction_1\n0,1,0\n"


def test_numbers_to_predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(0)
    x = draws.normal(size=(60, 4)).astype(np.float32)
    y = x @ np.array([[1.0], [-2.0], [0.5], [0.0]], dtype=np.float32)
    np.savez(
        tmp_path / "mine.npz",
        x=x,
        y=y,
        client=np.repeat(["anna", "ben", "carl", "dora", "eve", "finn"], 10),
    )
    spec = read_run_config(
        [f"data={tmp_path / 'mine.npz'}", "method=fedavg", "model=linear", "cohort=2", "rounds=5"]
    )
    out, to = tmp_path / "out", tmp_path / "ben"
    start_run(spec, out)
    made = export_client(out, "ben", to)
    answers = predict(to, tmp_path / "mine.npz")
    assert answers.shape == (60, 1)
    assert np.array_equal(
        answers, loaded(to, monkeypatch, tmp_path)(torch.from_numpy(x)).detach().numpy()
    )
    assert isinstance(made.to_module(), type(models.mlp(4, (), 1)))


def rewrite(folder: Path, content: dict[str, Any]) -> None:
    """Replace the description of a model as another version of fedtailor might."""
    ListedFolder(folder).write({"personalized.json": json.dumps(content).encode()})


def wrong(place: Path, run: Path) -> dict[str, Any]:
    """Calls with something wrong, and what is said of it."""
    scores = known(RunDir(run).read_record().scores)
    x, y = examples(run, scores["unseen"].ids[0], "train")
    np.savez(place / "good.npz", x=x, y=y)
    np.savez(place / "flat.npz", x=x.reshape(len(x), -1), y=y)
    np.savez(place / "short.npz", x=x, y=y[:-1])
    np.savez(place / "label.npz", x=x, y=y + 10)
    np.savez(place / "words.npz", x=x.astype(str), y=y)
    np.savez(place / "none.npz", x=x[:0], y=y[:0])
    np.savez(place / "only.npz", x=x)
    (place / "file").write_text("mine")
    (place / "full").mkdir()
    (place / "full" / "mine").write_text("mine")
    export_client(run, "0", place / "model")
    shutil.copytree(place / "model", place / "cut")
    (place / "cut" / "model.safetensors").write_bytes(b"half")
    shutil.copytree(place / "model", place / "other")
    content = json.loads((place / "model" / "personalized.json").read_text())
    content["config"]["hidden"] = [9]
    rewrite(place / "other", content)
    shutil.copytree(place / "model", place / "newer")
    rewrite(place / "newer", content | {"format": 5})
    to, good = place / "to", place / "good.npz"
    return {
        "There is no client '99' in data set 'digits'; did you mean 9?": lambda: export_client(
            run, "99", to
        ),
        "'*full' is not empty; choose another folder.": lambda: export_client(
            run, "0", place / "full"
        ),
        "'*file' is a file; choose another folder.": lambda: export_client(
            run, "0", place / "file"
        ),
        "'*nowhere' holds no run: ": lambda: export_client(place / "nowhere", "0", to),
        "'*/file/to' could not be written: Not a directory; ": lambda: export_client(
            run, "0", place / "file" / "to"
        ),
        "There is no file '*no.npz'.": lambda: personalize(run, place / "no.npz", to),
        "'*only.npz' must hold arrays x, y, but has only x.": lambda: personalize(
            run, place / "only.npz", to
        ),
        "personalize: x must hold examples of shape ": lambda: personalize(
            run, place / "flat.npz", to
        ),
        "personalize: ": lambda: personalize(run, place / "short.npz", to),
        "personalize: *": lambda: personalize(run, place / "label.npz", to),
        "personalize: **": lambda: personalize(run, place / "none.npz", to),
        "personalize: x must be ": lambda: personalize(run, place / "words.npz", to),
        "'*full' holds no run: there is no config.json in it.": lambda: personalize(
            place / "full", good, to
        ),
        "'*full' holds no personalized model: ": lambda: predict(place / "full", good),
        "'*cut/model.safetensors' is not what was written; put back the file ": lambda: predict(
            place / "cut", good
        ),
        "'*other/model.safetensors' lacks ": lambda: predict(place / "other", good),
        "'*newer/personalized.json' was written in format 5, but this fedtailor reads ": lambda: (
            predict(place / "newer", good)
        ),
        "predict: x must hold examples of shape ": lambda: predict(
            place / "model", place / "flat.npz"
        ),
        "predict: '*none.npz' holds no examples.": lambda: predict(
            place / "model", place / "none.npz"
        ),
        "predict: x must be ": lambda: predict(place / "model", place / "words.npz"),
        "'*no/a.csv' could not be written: ": lambda: write_predictions(
            place / "no" / "a.csv", np.zeros(1)
        ),
    }


def test_bad_input_is_one_sentence_and_leaves_nothing(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    calls = wrong(tmp_path, runs["server state"])
    before = sorted(tmp_path.rglob("*"))
    for sentence, call in calls.items():
        with pytest.raises(InputError) as caught:
            call()
        begin, star, rest = sentence.partition("*")
        said = str(caught.value)
        assert said.startswith(begin), said
        assert not star or rest.strip("*") in said, said
        assert "\n" not in said
        assert sorted(tmp_path.rglob("*")) == before


def test_a_run_without_a_checkpoint_has_no_model(tmp_path: Path) -> None:
    class Stop(Exception):  # noqa: N818
        pass

    rounds = iter([False])

    def stop() -> bool:
        for is_stopping in rounds:
            return is_stopping
        raise Stop

    with pytest.raises(Stop):
        start_run(small("method=fedavg", "rounds=3"), tmp_path / "out", should_stop=stop)
    with pytest.raises(InputError, match=r"^The run in '.*out' has no checkpoint yet\.$"):
        export_client(tmp_path / "out", "0", tmp_path / "to")
    (tmp_path / "out" / "record.json").unlink()
    with pytest.raises(InputError, match=r"^'.*out/record.json' is missing; put back the file "):
        export_client(tmp_path / "out", "0", tmp_path / "to")


def test_an_earlier_model_is_not_taken_for_the_last(runs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    start_run(small("method=fedavg", "rounds=2", "checkpoint_every=1"), out)
    (out / "checkpoints" / "000002" / "state.safetensors").write_bytes(b"half")
    with pytest.raises(
        InputError,
        match=r"^The last checkpoint of the run in '.*out' cannot be used: "
        r"checkpoint 000002 was skipped: 'state.safetensors' is not what was written\.$",
    ):
        export_client(out, "0", tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_a_full_disk_leaves_no_half_of_a_model(runs: dict[str, Path], tmp_path: Path) -> None:
    counting, met = Fault(-1, full_disk), 0
    with faulty(counting):
        export_client(runs["own"], "0", tmp_path / "whole")
    for at in range(1, counting.count):
        with (
            faulty(Fault(at, full_disk)),
            pytest.raises(InputError, match="could not be written: No space left"),
        ):
            export_client(runs["own"], "0", tmp_path / "to")
        met += 1
        assert [path.name for path in tmp_path.iterdir()] == ["whole"]
    assert met > 10
    export_client(runs["own"], "0", tmp_path / "to")
    assert (tmp_path / "to" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()
