"""Without what torch keeps to itself numbers are the same, and only a tested torch compiles."""

import ast
import importlib.util
import pkgutil
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.torch_version import TorchVersion

from agreement import distance
from fedtailor import data, models
from fedtailor.compat import torch_internals
from fedtailor.compiler.inductor import bind_compiled
from fedtailor.compiler.trace import TracedFunction
from fedtailor.core import functionalize, trees
from fedtailor.core.functionalize import seed_initialization
from fedtailor.core.task import classification, sequences, validate_task
from fedtailor.engines import compile_policy, factory, stack_runner
from fedtailor.engines.chunking import PeakMemory
from fedtailor.engines.context import EngineContext
from fedtailor.engines.vectorized import VectorizedEngine
from fedtailor.errors import InputError
from fedtailor.models.norms import with_group_norm
from fedtailor.prng import threefry
from fedtailor.training.context import prepare_context
from fedtailor.training.overrides import read_run_config
from fedtailor.training.runner import start_run
from scenarios import toy_data, toy_setting, train

VERSIONS = {
    "2.9.1": False,
    "2.10.2": False,
    "2.11.0": True,
    "2.11.0a0+git1234": True,
    "2.12.1+cu126": False,
    "2.13.0+cpu": True,
    "2.14.0": False,
    "2.14.0.dev20260101": False,
    "2.15.0": False,
    "2.110.0": False,
    "3.0.0": False,
    "master": False,
}


def pretend_version(patch: pytest.MonkeyPatch, version: str) -> None:
    """Have torch say that it is another one; warnings that were given once are given anew."""
    patch.setattr(torch, "__version__", TorchVersion(version))
    factory._warn_once.cache_clear()
    stack_runner._warn_once.cache_clear()


def load_without(patch: pytest.MonkeyPatch, *missing: str) -> Any:
    """Load the module as it is beside a torch that lacks what has these words in its path."""

    def resolve(path: str) -> Any:
        if any(each in path for each in missing):
            raise AttributeError(path)
        return resolve_name(path)

    resolve_name = pkgutil.resolve_name
    spec = importlib.util.spec_from_file_location("bare", torch_internals.__file__)
    assert spec is not None
    assert spec.loader is not None
    bare = importlib.util.module_from_spec(spec)
    with patch.context() as inner:
        inner.setattr(pkgutil, "resolve_name", resolve)
        spec.loader.exec_module(bare)
    return bare


def put_everywhere(patch: pytest.MonkeyPatch, bare: ModuleType) -> list[str]:
    """Have all of the library use another copy of the module; return the names that it used."""
    replaced = set[str]()
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] != "fedtailor" or module is torch_internals:
            continue
        for name, value in list(vars(module).items()):
            if getattr(value, "__module__", "") == torch_internals.__name__ and hasattr(bare, name):
                patch.setattr(module, name, getattr(bare, name))
                replaced.add(name)
    return sorted(replaced)


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return monkeypatch


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module beside a torch that lacks everything."""
    return load_without(monkeypatch, "")


Lose = Callable[[], list[str]]


@pytest.fixture
def lose(bare: Any, monkeypatch: pytest.MonkeyPatch) -> Lose:
    """What takes from the library all that torch keeps to itself."""
    return lambda: put_everywhere(monkeypatch, bare)


# The gate


@pytest.mark.parametrize("version", VERSIONS)
def test_only_releases_that_were_tried_count_as_tested(
    version: str, patch: pytest.MonkeyPatch
) -> None:
    patch.setattr(torch, "__version__", TorchVersion(version))
    assert torch_internals.is_torch_tested() is VERSIONS[version]
    assert torch_internals.can_record_operations() is VERSIONS[version]


def test_the_torch_of_these_tests_is_a_tested_one() -> None:
    assert torch_internals.is_torch_tested()


def test_the_oldest_tested_torch_is_the_oldest_that_is_installed() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    releases = [f"{major}.{minor}" for major, minor in torch_internals.TESTED_TORCH]
    assert f'"torch>={releases[0]}", # tested with {" and ".join(releases)};' in project


TESTED = (
    "steps are compiled only with torch 2.11 or 2.13, which are tested, and this is torch {}; "
    "to compile them: pip install 'torch==2.13.*'"
)


@pytest.mark.parametrize(
    ("version", "compile"),
    [("2.12.1", True), ("2.14.0", True), ("2.14.0", "training"), ("2.15.0", True)],
)
def test_another_torch_runs_uncompiled_with_one_warning_and_the_same_numbers(
    version: str, compile: Any, patch: pytest.MonkeyPatch
) -> None:
    small = toy_data(sizes=(3, 5, 8, 13))
    expected = train(toy_setting("scaffold", data=small), rounds=2)[0]
    pretend_version(patch, version)
    reason = TESTED.format(version)
    with pytest.warns(RuntimeWarning) as told:
        state, engine = train(toy_setting("scaffold", data=small), rounds=2, compile=compile)
    (only,) = told
    assert str(only.message) == f"All runs uncompiled, with the same results: {reason}"
    assert engine.notes == (f"scaffold runs uncompiled: {reason}",)
    assert factory.get_engine_options(engine).compile is False
    assert distance(tuple(expected), tuple(state)) == 0.0
    again = factory.make_engine(toy_setting("scaffold", data=small), compile=compile)
    assert again.notes == engine.notes  # and no second warning, which would be an error here


def test_another_torch_says_nothing_where_nothing_is_compiled(patch: pytest.MonkeyPatch) -> None:
    pretend_version(patch, "2.14.0")
    for name in ("vectorized", "sequential"):
        assert factory.make_engine(toy_setting("fedavg"), name).notes == ()


def test_another_torch_does_not_compile_on_auto(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend_version(patch, "2.14.0")
    patch.setattr(compile_policy, "SAVED_SHARE", 1e9)
    words = ["data=digits", "method=fedavg", "rounds=1", "cohort=2", "data.clients=12"]
    with pytest.warns(RuntimeWarning, match="All runs uncompiled"):
        done = start_run(read_run_config([*words, "compile=auto"]), tmp_path / "out")
    choices = done.record.choices
    assert choices.compile is False
    assert choices.notes == (f"fedavg runs uncompiled: {TESTED.format('2.14.0')}",)


def test_steps_of_an_engine_made_by_hand_are_not_compiled_either(patch: pytest.MonkeyPatch) -> None:
    found = []
    for version, compile in (("2.13.0", False), ("2.14.0", True)):
        pretend_version(patch, version)
        setting = toy_setting("fedavg", data=toy_data(sizes=(3, 5, 8, 13)))
        engine, state = VectorizedEngine(setting, compile=compile), setting.init_server_state()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found.append(engine.train(state, setting.data.groups["train"], 0).cohort_update)
        said = "torch 2.14.0 cannot compile a step, which runs uncompiled, with the same results"
        warned = [f"{said}: {TESTED.format('2.14.0')}"] if compile else []
        assert [str(each.message) for each in told] == warned
    assert distance(tuple(found[0]), tuple(found[1])) < 1e-12


def test_another_torch_is_given_nothing_to_compile(patch: pytest.MonkeyPatch) -> None:
    graph = torch_internals.record_operations(torch.neg, [torch.ones(2)])
    pretend_version(patch, "2.14.0")
    with pytest.raises(RuntimeError, match="pip install"):
        torch_internals.compile_graph(graph, [torch.ones(2)])
    with pytest.raises(RuntimeError, match="pip install"):
        torch_internals.record_operations(torch.neg, [torch.ones(2)])
    with pytest.raises(RuntimeError, match="pip install"):
        bind_compiled(lambda x: None, (torch.ones(2),))


def test_another_torch_follows_functions_each_time(patch: pytest.MonkeyPatch) -> None:
    calls = list[float]()

    def count(x: Tensor) -> Tensor:
        calls.append(0.0)
        return 2 * x

    pretend_version(patch, "2.14.0")
    traced = TracedFunction(count)
    found = [traced(torch.tensor(number)).item() for number in range(4)]
    assert found == [0, 2, 4, 6]
    assert len(calls) == 4


# What is merely missing


def list_paths() -> list[str]:
    """Return the paths that the module looks up in torch."""
    calls = [
        node
        for node in ast.walk(ast.parse(Path(torch_internals.__file__).read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "_find"
    ]
    return [ast.literal_eval(call.args[0]) for call in calls]


@pytest.mark.parametrize("path", list_paths())
def test_a_tested_torch_lacks_nothing(path: str) -> None:
    assert pkgutil.resolve_name(path) is not None


class Pair(NamedTuple):
    first: Any
    second: Any


def make_tree(seed: int) -> dict[str, Any]:
    """A tree of every kind of node."""
    draw = torch.Generator().manual_seed(seed)
    leaves = (torch.randn(2, 3, generator=draw) for _ in range(9))
    return {
        "pair": Pair({"w": next(leaves), "b": next(leaves)}, (next(leaves),)),
        "list": [next(leaves), [next(leaves)], ()],
        "ordered": OrderedDict(z=next(leaves), a=next(leaves)),
        "alone": next(leaves),
        "number": 2.0,
        "nothing": {},
    }


def test_trees_are_the_same_without_pytree(bare: Any) -> None:
    tree, other = make_tree(0), make_tree(1)
    for function in ("flatten_tree", "list_leaf_paths"):
        found, expected = (getattr(module, function)(tree) for module in (bare, torch_internals))
        assert len(found) == len(expected) == 9
        assert all(a is b or a == b for a, b in zip(found, expected, strict=True))
    both = (bare, torch_internals)
    found, expected = (module.map_tree(lambda a, b: 2 * a - b, tree, other) for module in both)
    assert torch_internals.list_leaf_paths(found) == torch_internals.list_leaf_paths(expected)
    assert isinstance(found["pair"], Pair)
    assert isinstance(found["list"], list)
    assert type(found["ordered"]) is OrderedDict
    pairs = zip(*map(torch_internals.flatten_tree, (found, expected)), strict=True)
    assert all(bool(torch.as_tensor(a == b).all()) for a, b in pairs)
    assert tree["pair"].first.keys() == {"w", "b"}
    assert torch.equal(tree["alone"], make_tree(0)["alone"])


@pytest.mark.parametrize(
    ("one", "other"),
    [({"a": 1}, {"b": 1}), ({"a": 1}, {"a": 1, "b": 2}), ((1, 2), (1,)), ({"a": (1,)}, {"a": 1})],
)
def test_trees_of_other_shapes_are_refused_without_pytree(bare: Any, one: Any, other: Any) -> None:
    for module in (bare, torch_internals):
        with pytest.raises(ValueError, match="mismatch"):
            module.map_tree(lambda a, b: a, one, other)


SHAPES = ((3, 4), (), (0, 2), (5,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_lists_are_calculated_alike_one_by_one(bare: Any, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    a, b = ([torch.randn(s, generator=draw).to(dtype) for s in SHAPES] for _ in range(2))
    both = (torch_internals, bare)
    cases: list[Callable[[Any], Any]] = [
        lambda module: module.add_lists(a, b, 0.3),
        lambda module: module.sub_lists(a, b),
        lambda module: module.scale_list(a, -1.7),
    ]
    for case in cases:
        expected, found = (list(case(module)) for module in both)
        for x, y in zip(expected, found, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=0)
    sums = [torch.stack(list(module.sum_magnitudes(a))) for module in both]
    torch.testing.assert_close(sums[0], sums[1])
    buffers = [torch.empty_like(leaf) for leaf in a]
    bare.copy_lists(buffers, a)
    assert distance(tuple(buffers), tuple(a)) == 0.0


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_are_found_one_by_one(lose: Lose, value: float) -> None:
    lose()
    assert trees.is_finite({"a": torch.ones(3), "b": torch.zeros(())})
    assert not trees.is_finite({"a": torch.ones(3), "b": torch.tensor([1.0, value])})


def test_a_transform_is_assumed_where_torch_does_not_tell(bare: Any) -> None:
    assert bare.is_functorch_active()
    assert not torch_internals.is_functorch_active()
    seen = torch.func.vmap(lambda x: x * torch_internals.is_functorch_active())(torch.ones(2))
    assert seen.tolist() == [1.0, 1.0]


def test_own_recordings_are_known_where_torch_does_not_tell(patch: pytest.MonkeyPatch) -> None:
    own, seen = load_without(patch, "get_proxy_mode"), list[tuple[bool, bool]]()

    def tell() -> tuple[bool, bool]:
        return own.is_tracing(), torch_internals.is_tracing()

    def look(x: Tensor) -> Tensor:
        seen.append(tell())
        return -x

    def fail(x: Tensor) -> Tensor:
        return x * (1 / 0)

    x = torch.ones(2)
    assert tell() == (False, False)
    assert own.record_operations(look, [x])(x).tolist() == [-1.0, -1.0]
    assert seen == [(True, True)]
    with pytest.raises(ZeroDivisionError):
        own.record_operations(fail, [x])
    assert tell() == (False, False)


def test_nothing_is_recorded_where_torch_cannot(bare: Any) -> None:
    assert not bare.can_record_operations()
    with pytest.raises(RuntimeError, match="pip install"):
        bare.record_operations(torch.neg, [torch.ones(2)])


def test_a_storage_has_one_number(bare: Any) -> None:
    x, other = torch.ones(4), torch.ones(4)
    for module in (bare, torch_internals):
        numbers = [module.identify_storage(each.untyped_storage()) for each in (x, x[2:], other)]
        assert numbers[0] == numbers[1] != numbers[2]


def test_batch_norms_are_known_by_their_public_names(bare: Any) -> None:
    norms = [nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.BatchNorm3d(2), nn.LazyBatchNorm2d()]
    others = [nn.GroupNorm(1, 2), nn.InstanceNorm2d(2), nn.Linear(1, 1)]
    for module in (bare, torch_internals):
        assert all(module.is_batch_norm(layer) for layer in (*norms, nn.SyncBatchNorm(2)))
        assert not any(module.is_batch_norm(layer) for layer in others)
    of_its_own = type("Own", (nn.modules.batchnorm._BatchNorm,), {})(2)
    assert torch_internals.is_batch_norm(of_its_own)


def test_nothing_private_is_asked_of_an_operation_without_a_schema() -> None:
    assert torch_internals.list_argument_names(torch.ops.aten.neg.default) == ["self"]
    assert torch_internals.list_argument_names(SimpleNamespace()) == []


@pytest.mark.parametrize("has_dicts", [True, False])
def test_a_module_is_called_with_other_tensors_and_keeps_its_own(
    has_dicts: bool, patch: pytest.MonkeyPatch
) -> None:
    assert torch_internals.get_tensor_dicts(SimpleNamespace()) == ()  # type: ignore[arg-type]
    if not has_dicts:
        patch.setattr(functionalize, "get_tensor_dicts", lambda module: ())
    model = nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.Linear(2, 2, bias=False)))
    before = [value.clone() for value in model.state_dict().values()]
    weight, bias, last = torch.ones(2, 3), torch.tensor([1.0, 2.0]), 3 * torch.eye(2)
    call = functionalize.FunctionalCall(model)
    found = call({"0.weight": weight, "0.bias": bias, "1.0.weight": last}, torch.ones(1, 3))
    assert found.tolist() == [[12.0, 15.0]]
    assert all(map(torch.equal, model.state_dict().values(), before))


def test_fused_cells_are_left_to_the_formula(bare: Any) -> None:
    one = torch.ones(1, 1)
    assert bare.run_fused_lstm_cell(one, one, one) is None
    assert bare.run_fused_lstm_cell_backward(one, one, one, one, one) is None


def test_torch_has_not_said_where_code_is_kept_until_it_compiles(patch: pytest.MonkeyPatch) -> None:
    name = "torch._inductor.runtime.cache_dir_utils"
    patch.delitem(sys.modules, name, raising=False)
    assert torch_internals.get_default_cache_dir() is None
    patch.setitem(sys.modules, name, ModuleType(name))
    assert torch_internals.get_default_cache_dir() is None
    known: Any = ModuleType(name)
    known.default_cache_dir = lambda: "/there"
    patch.setitem(sys.modules, name, known)
    assert torch_internals.get_default_cache_dir() == "/there"


def test_weights_are_drawn_alike_without_a_hook_for_operations(lose: Lose) -> None:
    def draw() -> dict[str, Tensor]:
        with seed_initialization(3):
            return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(4, 5), nn.LSTM(5, 2)).state_dict()

    expected, before = draw(), torch.get_rng_state()
    lose()
    assert distance(draw(), expected) == 0.0
    assert torch.equal(torch.get_rng_state(), before)


class Noisy(nn.Linear):
    """Draws in a way that does not show in what it returns."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0 * torch.rand(3)


def test_models_that_draw_are_refused_without_a_hook_for_operations(lose: Lose) -> None:
    x, y = torch.ones(2, 5), torch.tensor([0, 2])
    with seed_initialization(0):
        noisy, plain = classification(Noisy(5, 3)), classification(nn.Linear(5, 3))
    lose()
    before = torch.get_rng_state()
    with pytest.raises(InputError, match="draws random numbers by itself"):
        validate_task(noisy, x, y)
    assert torch.equal(torch.get_rng_state(), before)
    validate_task(plain, x, y)


def test_memory_is_not_measured_without_a_hook_for_operations(lose: Lose) -> None:
    lose()
    with PeakMemory() as peak:
        assert (torch.ones(1000) * 2).sum() == 2000
    assert peak.peak_bytes == 0


def make_text_setting() -> EngineContext:
    """FedAvg on short random texts with a recurrent model."""
    texts = np.random.default_rng(0).integers(1, 9, (24, 5), dtype=np.uint8)
    client = np.arange(24) // 4
    own = data.from_arrays(texts[:, :4], texts[:, 1:], client, tokens=True, classes=9)
    with seed_initialization(0):
        task = sequences(models.language_model(9, 3, 4)).to(dtype=torch.float64)
    return prepare_context("fedavg", task, own, rounds=2, cohort=3, seed=1, batch=2)


SETTINGS: dict[str, Callable[[], EngineContext]] = {
    "text": make_text_setting,
    "scaffold": lambda: toy_setting("scaffold"),
    "fedsim": lambda: toy_setting("fedsim"),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("engine_name", ["vectorized", "sequential"])
def test_training_is_the_same_without_privates(name: str, engine_name: str, lose: Lose) -> None:
    expected = train(SETTINGS[name](), rounds=2, cohort=3, name=engine_name)[0]
    used = lose()
    assert {"add_lists", "intercept_operations", "is_functorch_active", "is_tracing"} <= set(used)
    found = train(SETTINGS[name](), rounds=2, cohort=3, name=engine_name)[0]
    assert distance(tuple(expected), tuple(found)) < 1e-12


def test_programs_are_the_same_without_anything_private(lose: Lose) -> None:
    found = []
    for is_bare in (False, True):
        if is_bare:
            lose()
        setting = toy_setting("scaffold")
        engine, state = VectorizedEngine(setting, use_programs=True), setting.init_server_state()
        cohort = setting.data.groups["train"]
        found += [tuple(engine.train(state, cohort, round_idx)[0]) for round_idx in range(3)]
    assert distance(tuple(found[:3]), tuple(found[3:])) < 1e-12


def test_random_bits_are_the_same_without_anything_private(lose: Lose) -> None:
    key, counters = torch.arange(5), torch.arange(5)
    expected = threefry.dispatch_threefry(key, counters, 1)
    lose()
    assert torch.equal(threefry.dispatch_threefry(key, counters, 1), expected)


def test_batch_norms_become_group_norms_without_anything_private(lose: Lose) -> None:
    lose()
    made = with_group_norm(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)))
    assert isinstance(made[1], nn.GroupNorm)  # type: ignore[index]


# Patches and warnings


@pytest.mark.parametrize("version", ["2.11.0", "2.11.1+cu126"])
def test_torch_before_2_13_remembers_reads(version: str, patch: pytest.MonkeyPatch) -> None:
    from torch._inductor.dependencies import ReadWrites, StarDep, WeakDep
    from torch._inductor.scheduler import SchedulerNode
    from torch.utils._ordered_set import OrderedSet

    def forget(self: Any) -> None:
        self.read_writes = ReadWrites(OrderedSet([StarDep("new")]), OrderedSet(), OrderedSet())

    def set_read_writes(found: ReadWrites) -> None:
        node.read_writes = found

    patch.setattr(SchedulerNode, "recompute_size_and_body", forget)
    patch.setattr(torch, "__version__", TorchVersion(version))
    torch_internals.patch_write_order.__wrapped__()
    reads = OrderedSet([WeakDep("weights", "step"), StarDep("whole")])
    read_writes = ReadWrites(reads, OrderedSet(), OrderedSet())
    node = SimpleNamespace(read_writes=read_writes, set_read_writes=set_read_writes)
    SchedulerNode.recompute_size_and_body(node)  # type: ignore[arg-type]
    assert {each.name for each in node.read_writes.reads} == {"weights", "whole", "new"}


def test_torch_from_2_13_on_is_left_alone(patch: pytest.MonkeyPatch) -> None:
    from torch._inductor.scheduler import SchedulerNode

    before = SchedulerNode.recompute_size_and_body
    patch.setattr(torch, "__version__", TorchVersion("2.13.0"))
    torch_internals.patch_write_order.__wrapped__()
    assert SchedulerNode.recompute_size_and_body is before


def test_onednn_is_there_again_afterwards() -> None:
    before = torch.backends.mkldnn.enabled
    with torch_internals.without_onednn():
        assert not torch.backends.mkldnn.enabled
    assert torch.backends.mkldnn.enabled == before
    with pytest.raises(InputError), torch_internals.without_onednn():
        raise InputError("stop")
    assert torch.backends.mkldnn.enabled == before


def test_only_torch_is_silenced() -> None:
    with torch_internals.silence_speed_warnings():
        warnings.warn("There is a performance drop because of vmap", UserWarning, stacklevel=1)
        with pytest.raises(UserWarning, match="mine"):
            warnings.warn("mine", UserWarning, stacklevel=1)
    array = np.ones(3)
    array.flags.writeable = False
    with torch_internals.silence_read_only_warning():
        assert torch.from_numpy(array).tolist() == [1.0] * 3


def test_operations_without_rules_are_noted() -> None:
    text = "There is a performance drop, as there is no batching rule for aten::x. Please file one"
    with torch_internals.record_vmap_fallbacks() as operations:
        warnings.warn(text, UserWarning, stacklevel=1)
        warnings.warn("something else", UserWarning, stacklevel=1)
    assert operations == {"aten::x"}


def test_functions_are_marked_as_torch_marks_them() -> None:
    @torch_internals.mark_constant
    def own() -> int:
        return 1

    assert own() == 1
    torch_marks: Any = torch.compiler.assume_constant_result
    assert vars(own) == vars(torch_marks(lambda: 1))
