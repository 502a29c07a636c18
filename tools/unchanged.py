"""Check that a rewrite changes no number: hash what runs leave behind, before and after.

    python tools/unchanged.py record FILE      hash everything and write it down
    python tools/unchanged.py compare FILE     compare with FILE; exit code 1 if anything differs

Hashed, bit for bit: final weights, server state, client states, cohorts, scores and personalized
weights of every method and composition of the contract on the sequential, the vectorized and the
distributed engine, in float64 and float32, uncompiled and on one thread; models with convolutions
and recurrent layers; the data sets that come with the library, every partition of stored ones and
every source of server data; runs from a specification with the clients that are evaluated. Compiled
runs in float64 are written down as numbers and compared to 1e-12. Run it with the same torch on the
same machine.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from contract import ROWS  # noqa: E402
from divided import add_people, data_folder, fingerprint, images_of, saved, writers  # noqa: E402
from fedtailor import classification, data, fit, sequences  # noqa: E402
from fedtailor.core import trees  # noqa: E402
from fedtailor.core.functionalize import seed_initialization  # noqa: E402
from fedtailor.engines import factory  # noqa: E402
from fedtailor.evaluation.evaluate import sample_group  # noqa: E402
from fedtailor.models.text import language_model  # noqa: E402
from fedtailor.personalization.personal_model import personalize_model  # noqa: E402
from fedtailor.training.loop import run_rounds  # noqa: E402
from fedtailor.training.overrides import read_run_config  # noqa: E402
from fedtailor.training.run_dir import RunDir  # noqa: E402
from fedtailor.training.runner import start_run  # noqa: E402
from fedtailor.training.trained_model import load_trained_model  # noqa: E402
from known import known  # noqa: E402
from scenarios import toy_data, toy_setting, toy_task  # noqa: E402

ENGINES = ("sequential", "vectorized", "distributed")
TOLERANCE = 1e-12
COMPILED = ("fedavg", "fedprox", "scaffold", "per-fedavg", "fedsim", "fsl+per+fedmeta")


def digest(tree: Any) -> str:
    """Hash the leaves of a tree: values, shapes, types and order."""
    found = hashlib.sha256()
    for leaf in trees.leaves(tree):
        array = leaf.detach().cpu().contiguous().numpy()
        found.update(f"{array.dtype} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()[:16]


def outcome(
    setting: Any, rounds: int, cohort: int, engine_name: str, compile: bool = False
) -> dict[str, Any]:
    """Train, evaluate and return everything that is left behind."""
    engine = factory.make_engine(setting, engine_name, compile=compile)
    state = setting.init_server_state()
    loop = run_rounds(setting, engine, state, min(cohort, len(setting.data.groups["train"])))
    cohorts = []
    for _ in range(rounds):
        done = next(loop)
        state = done.state
        cohorts.append(torch.from_numpy(done.cohort))
    everyone = np.arange(setting.data.clients.count)
    scores = engine.score(state, everyone)
    kept = factory.collect_client_states(engine).gather(
        everyone, setting.method.init_client_state(state)
    )
    return {
        "params": state.params,
        "server": tuple(state),
        "clients": kept,
        "cohorts": tuple(cohorts),
        "scores": tuple(scores),
    }


def hashed(found: dict[str, Any]) -> dict[str, str]:
    """Hash each entry."""
    return {name: digest(tree) for name, tree in found.items()}


def methods_on_a_toy() -> Iterator[tuple[str, Any]]:
    """Yield every configuration of the contract, by its place in the list."""
    clients = toy_data(sizes=(20, 9, 1, 2, 13, 8, 3, 5))
    for number, (method, hyper) in enumerate(ROWS):
        for name, engine in enumerate(ENGINES):
            for bits, dtype in ((64, torch.float64), (32, torch.float32)):
                setting = toy_setting(method, toy_task(dropout=0.3, dtype=dtype), clients, **hyper)
                yield (
                    f"toy {number} {method} engine {name} float{bits}",
                    hashed(outcome(setting, 2, 4, engine)),
                )


def compiled_methods() -> Iterator[tuple[str, Any]]:
    """Yield the weights of compiled runs as numbers."""
    clients = toy_data(sizes=(20, 9, 1, 2, 13, 8, 3, 5))
    for number, method in enumerate(COMPILED):
        setting = toy_setting(method, toy_task(dropout=0.3), clients)
        found = outcome(setting, 2, 4, ENGINES[1], compile=True)
        values = [
            float(value)
            for leaf in trees.leaves(found["server"])
            for value in leaf.flatten().double()
        ]
        yield f"compiled {number} {method}", values


def networks() -> Iterator[tuple[str, Any]]:
    """Yield convolutional and recurrent models, whose clients run one after another."""
    draws = np.random.default_rng(1)
    client = np.arange(96) % 8
    images = data.from_arrays(
        draws.integers(0, 256, (96, 1, 12, 12), dtype=np.uint8),
        draws.integers(0, 3, 96),
        client,
        server=12,
        scale=1 / 255,
    )
    with seed_initialization(3):
        convolutional = classification(
            torch.nn.Sequential(
                torch.nn.Conv2d(1, 16, 3),
                torch.nn.ReLU(),
                torch.nn.Flatten(),
                torch.nn.Linear(1600, 3),
            )
        )
        recurrent = sequences(language_model(12, embedding=4, hidden=16, layers=2))
    texts = draws.integers(1, 12, (96, 7), dtype=np.uint8)
    tokens = data.from_arrays(texts[:, :6], texts[:, 1:], client, tokens=True, classes=12)
    for method in ("fedavg", "fedprox", "per-fedavg", "fedsim", "ditto"):
        setting = toy_setting(method, convolutional, images)
        for name, engine in enumerate(ENGINES[:2]):
            yield f"convolutional {method} engine {name}", hashed(outcome(setting, 2, 3, engine))
            setting = toy_setting(method, convolutional, images)
    for method in ("fedavg", "scaffold"):
        for name, engine in enumerate(ENGINES[:2]):
            setting = toy_setting(method, recurrent, tokens)
            yield f"recurrent {method} engine {name}", hashed(outcome(setting, 1, 3, engine))


def data_sets() -> Iterator[tuple[str, str]]:
    """Yield data sets that come with the library, and stored ones in every division."""
    yield "digits", fingerprint(data.digits(seed=3))
    yield "synthetic", fingerprint(data.synthetic(seed=3))
    draws = np.random.default_rng(2)
    arrays = (
        draws.normal(size=(200, 4)).astype(np.float32),
        draws.integers(0, 4, 200),
        np.arange(200) % 11,
    )
    yield "arrays", fingerprint(data.from_arrays(*arrays, server=0.1, adapt=0.5, seed=2))
    yield (
        "arrays with support",
        fingerprint(data.from_arrays(*arrays, server=0.1, seed=2).with_support()),
    )
    partitions: dict[str, dict[str, Any]] = {
        "two-labels": {"clients": 30, "least": 4},
        "half-and-half": {"clients": 10, "images": 8},
        "few-labels": {"clients": 30},
        "shards": {"clients": 30},
        "dirichlet": {"clients": 30, "least": 5},
        "quantity": {"clients": 30, "least": 5},
        "iid": {"clients": 30},
    }
    with data_folder() as folder:
        data.add("mnist", saved(folder / "mnist.npz", images_of("mnist", 1000, 200)))
        data.add("femnist", saved(folder / "femnist.npz", writers()))
        add_people([[False] * 6, [True] * 3 + [False] * 5, [False] * 9, [True, False, False]])
        for partition, options in partitions.items():
            for source in ("examples", "classes", "whole-clients", "client-samples"):
                given = options | {"partition": partition, "server_from": source, "seed": 5}
                given |= {"examples": {"server": 40}, "classes": {"server": 40}}.get(
                    source, {"server": 0.1}
                )
                given |= {"server_each": 5} if source == "client-samples" else {}
                yield f"mnist {partition} {source}", fingerprint(data.load("mnist", **given))
        mixed = {
            "partition": "iid",
            "others": "shards",
            "clients": 20,
            "zeta": 0.5,
            "augment": True,
            "seed": 4,
        }
        yield "mnist mixed", fingerprint(data.load("mnist", **mixed, server_damage="noise"))
        for split in ("random", "last", "own"):
            yield (
                f"femnist {split}",
                fingerprint(data.load("femnist", split=split, clients=20, seed=6)),
            )
        yield (
            "femnist whole-clients",
            fingerprint(data.load("femnist", server_from="whole-clients", server=0.2, seed=6)),
        )


def specified_runs() -> Iterator[tuple[str, Any]]:
    """Yield runs from a specification, with evaluated clients, a pre-trained model and personalized
    weights.
    """
    cases = {
        "fedsim": [
            "method=fedsim",
            "pretrain=1",
            "rounds=4",
            "eval_clients=3",
            "final_eval_clients=4",
        ],
        "fsl": ["method=fsl", "rounds=4", "eval_clients=3", "seed=5", "data.seed=0"],
        "fedmeta-per": ["method=fedmeta-per", "offer=3", "rounds=4", "eval_clients=3"],
        "local": ["method=local", "rounds=4", "final_eval_clients=3"],
    }
    draws = np.random.default_rng(0)
    for name, words in cases.items():
        for engine in ENGINES[:2]:
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "run"
                spec = read_run_config([*words, "cohort=5", "compile=false", f"engine={engine}"])
                start_run(spec, out)
                record = RunDir(out).read_record()
                weights = (out / "model.safetensors").read_bytes()
                rounds = [[entry.scores, entry.bytes_up, entry.steps] for entry in record.rounds]
                groups = [
                    [each.ids, each.before, each.after, each.after_passes, each.weights]
                    for each in known(record.scores).values()
                ]
                text = json.dumps(_list_numbers([rounds, groups]))
                x = draws.integers(0, 17, (6, 1, 8, 8), dtype=np.uint8)
                y = draws.integers(0, 10, 6)
                made = personalize_model(load_trained_model(out), x, y)
                yield (
                    f"run {name} engine {ENGINES.index(engine)}",
                    {
                        "weights": hashlib.sha256(weights).hexdigest()[:16],
                        "figures": hashlib.sha256(text.encode()).hexdigest()[:16],
                        "newcomer": digest(made.params),
                    },
                )


def _list_numbers(value: Any) -> list[Any]:
    """Return what a JSON value holds in its order, without the names of its keys."""
    if isinstance(value, dict):
        return [_list_numbers(inner) for inner in value.values()]
    if isinstance(value, list):
        return [_list_numbers(inner) for inner in value]
    return [value]


def evaluated_clients() -> Iterator[tuple[str, Any]]:
    """Yield the clients that are evaluated while training."""
    setting = toy_setting("fedavg", data=toy_data(sizes=(5,) * 40), seed=3)
    for number, group in enumerate(("participating", "unseen", "validation", "train")):
        yield f"evaluated clients {number}", sample_group(setting, group, 5).tolist()
    fitted = fit(
        "fedavg", partial(torch.nn.Linear, 4, 3), _table(), rounds=2, cohort=3, seed=9, batch=4
    )
    yield "fit", hashed({"params": fitted.params})


def _table() -> Any:
    draws = np.random.default_rng(8)
    return data.from_arrays(
        draws.normal(size=(90, 4)).astype(np.float32), draws.integers(0, 3, 90), np.arange(90) % 9
    )


PARTS = (methods_on_a_toy, compiled_methods, networks, data_sets, specified_runs, evaluated_clients)


def differs(before: Any, after: Any) -> bool:
    """Return whether two entries differ: hashes at all, numbers by more than the tolerance."""
    if isinstance(before, list) and before and isinstance(before[0], float):
        return (
            len(before) != len(after) or float(np.abs(np.subtract(before, after)).max()) > TOLERANCE
        )
    return bool(before != after)


def main() -> None:
    """Record or compare."""
    what, path = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    found = {name: value for part in PARTS for name, value in part()}
    if what == "record":
        path.write_text(json.dumps(found, indent=0))
        print(f"{len(found)} entries written to {path}")
        return
    before = json.loads(path.read_text())
    after = json.loads(json.dumps(found))
    wrong = [
        name for name in before.keys() | after.keys() if differs(before.get(name), after.get(name))
    ]
    print(f"{len(before)} entries, {len(wrong)} differ")
    for name in sorted(wrong):
        print(f"  {name}: {str(before.get(name))[:200]} -> {str(after.get(name))[:200]}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
