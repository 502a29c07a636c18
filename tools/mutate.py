"""Seed 40 faults in the library, one at a time, and tell which of them the tests catch.

    python tools/mutate.py [--tree DIR] [--only TEXT] [--map FILE] [--list]

    --tree DIR   a checkout of this project whose library and tests are taken, default: this one
    --only TEXT  only the faults whose description has this text in it
    --map FILE   which tests execute what; made by a run of all tests if the file is not there
    --list       print the faults and stop

Each fault is an expression of a function that is replaced by another one. It is found by its
module, its function and the expression, wherever it stands, so other code may move and change.

Everything happens in copies of the tree. In one of them the expressions note which test executes
them, while the whole default selection runs once. Tests that fail there are left out. Then each
fault is seeded in a clean copy and meets the tests that execute it until one of them fails: first
some that are close to the module or differ from each other, then all the others. So a fault that
has escaped is executed by no test that minds. A test that fails without the fault does not count.

Run this with the Python that runs tests. If another tree needs packages that it lacks, say in
PYTHONPATH where they are. GPU code has faults of its own, in tests/gpu/faults.py.

What runs of all faults found, at which commit:

    8ed211b  39 of 40 caught
    037c3e3  39 of 40 caught
    85a92e7  40 of 40 caught

One escaped the first two times: 5, where sums of padding that are not finite spoil the others
(`masked_sums: torch.where(mask > 0, ...)` then). A test for it was added since, in
tests/core/test_task.py. Modules, functions and names of the list are those of today, so trees from
before they were renamed, those of these commits among them, need the list of their own time.
"""

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LIBRARY = Path("src", "fedtailor")
LOT = 40
"""Tests that a fault meets before all the others."""
AT_A_TIME = 2
"""Faults, and processes of the run of all tests."""
LEFT_OUT = (".*", "__pycache__", "build", "dist", "runs")
"""What is not copied."""
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0")
PASSED, FAILED, INTERRUPTED = range(3)
"""What pytest exits with when tests ran, and when they could not be collected."""


class Fault(NamedTuple):
    """An expression of a function, and what it is replaced by."""

    module: str  # a file below src/fedtailor
    function: str  # with the names of what it is in
    before: str
    after: str

    @property
    def name(self) -> str:
        """Return the fault in a line."""
        return f"{self.module} {self.function}: {self.before} -> {self.after}"


FAULTS = (
    Fault(
        "core/autodiff.py",
        "finite_difference_hvp",
        "0.5 / step",
        "1.0 / step",
    ),
    Fault(
        "core/optimizers.py",
        "_adam_update",
        "(m / debias1) / ((v / debias2).sqrt() + eps)",
        "(m / debias1) / (v / debias2 + eps).sqrt()",
    ),
    Fault(
        "core/optimizers.py",
        "_yogi_update",
        "torch.sign(v - g * g)",
        "torch.sign(g * g - v)",
    ),
    Fault(
        "core/schedules.py",
        "_compute_progress",
        "(_to_float(round_idx) / rounds).clamp(0, 1)",
        "(_to_float(round_idx) / rounds).clamp(min=0)",
    ),
    Fault(
        "core/losses.py",
        "_masked_totals",
        "torch.where(mask > 0, sums * mask, 0)",
        "sums * mask",
    ),
    Fault(
        "core/losses.py",
        "make_token_weights",
        "weights * (y != token)",
        "torch.ones_like(weights) * (y != token)",
    ),
    Fault(
        "core/trees.py",
        "is_finite_tensor",
        "[leaf for leaf in leaves(tree) if leaf.is_floating_point()]",
        "[leaf for leaf in leaves(tree)[:1] if leaf.is_floating_point()]",
    ),
    Fault(
        "methods/scaffold.py",
        "compute_control_update",
        "-update / lr / steps.clamp(min=1) - control",
        "-update / lr / steps.clamp(min=1) + control",
    ),
    Fault(
        "methods/scaffold.py",
        "server_step",
        "cohort_update.cohort_size / cohort_update.num_clients",
        "1.0",
    ),
    Fault(
        "methods/feddyn.py",
        "finalize_client",
        "trees.add(carry.local_gradient, update, -alpha)",
        "trees.scale(update, -alpha)",
    ),
    Fault(
        "methods/apfl.py",
        "client_step",
        "torch.zeros_like(is_first)",
        "is_first",
    ),
    Fault(
        "methods/pfedme.py",
        "init_finetune",
        "((broadcast, optimizer.init(broadcast)), personal)",
        "((broadcast, optimizer.init(broadcast)), broadcast)",
    ),
    Fault(
        "methods/per_fedavg.py",
        "meta_step",
        "autodiff.gradient(loss, ahead, outer)",
        "autodiff.gradient(loss, ahead, inner)",
    ),
    Fault(
        "methods/fedmeta.py",
        "outer_step",
        "(batches[-1].mask > 0).any()",
        "(batches[0].mask > 0).any()",
    ),
    Fault(
        "methods/afml.py",
        "draw_weight_noise",
        "prng.fold(prng.fold(state.key, state.round), Stream.WEIGHTS)",
        "prng.fold(state.key, Stream.WEIGHTS)",
    ),
    Fault(
        "methods/fedsim.py",
        "meta_step",
        "-hparams.beta * decay(state.round)",
        "-hparams.beta * decay(state.round + 1)",
    ),
    Fault(
        "methods/wrappers/personal_layers.py",
        "restore_personal_part",
        "trees.select(before, names, True)",
        "trees.select(after, names, True)",
    ),
    Fault(
        "engines/context.py",
        "EngineContext.compute_weights",
        "get_client_sizes(self.data.clients.splits[split], client_ids)",
        "get_client_sizes(self.data.clients.splits['train'], client_ids)",
    ),
    Fault(
        "engines/single_client.py",
        "run_single_client",
        "prng.fold(work.key, phase_idx)",
        "work.key",
    ),
    Fault(
        "engines/aggregation.py",
        "UpdateAggregator.compute_update",
        "torch.cat(self._weights) if len(self._weights) > 1 else self._weights[0]",
        "self._weights[0]",
    ),
    Fault(
        "engines/stack_runner.py",
        "StackRunner.run_phase",
        "np.argsort(order)",
        "order",
    ),
    Fault(
        "engines/stack_runner.py",
        "StackRunner._run_shrinking_stack",
        "stack.num_steps > step_idx",
        "stack.num_steps >= step_idx",
    ),
    Fault(
        "engines/vectorized.py",
        "VectorizedEngine._compute_adapt_losses",
        "np.repeat(client_ids, len(offering_ids))",
        "np.repeat(np.arange(len(client_ids)), len(offering_ids))",
    ),
    Fault(
        "engines/client_state.py",
        "ClientStateStore.gather",
        "self._find_rows(ids[is_initialized])",
        "self._find_rows(ids[is_initialized]).flip(0)",
    ),
    Fault(
        "engines/sequential.py",
        "SequentialEngine._run_server",
        "self.context.derive_keys(Stream.SERVER, round_idx, [0])",
        "self.context.derive_keys(Stream.SERVER, 0, [0])",
    ),
    Fault(
        "engines/distributed/engine.py",
        "DistributedEngine._reduce_mean",
        "sum(status.weight for status in statuses)",
        "len(statuses)",
    ),
    Fault(
        "prng/__init__.py",
        "choice",
        "torch.where(repeated, len(drawn), order)",
        "order",
    ),
    Fault(
        "prng/__init__.py",
        "normal",
        "1 - torch.finfo(dtype).eps / 2",
        "1",
    ),
    Fault(
        "prng/__init__.py",
        "dropout_mask",
        "drawn << 16 >= threshold",
        "drawn >= threshold",
    ),
    Fault(
        "data/batching.py",
        "_BatchStream.compute_batches",
        "prng.fold(self._step_keys[client], step)",
        "self._step_keys[client]",
    ),
    Fault(
        "data/batching.py",
        "iter_batch_index_blocks",
        "range(len(plan.specs))[::-1]",
        "range(len(plan.specs))",
    ),
    Fault(
        "data/partition/splits.py",
        "_is_last",
        "rank >= (sizes - test_sizes)[owners]",
        "rank > (sizes - test_sizes)[owners]",
    ),
    Fault(
        "data/dataset.py",
        "FederatedDataset.with_pooled_client",
        "np.isin(train.compute_owners(), self.groups['train'])",
        "np.ones(len(train.index), dtype=bool)",
    ),
    Fault(
        "data/partition/dirichlet.py",
        "_fill_smallest",
        "np.argsort(-height, kind='stable')",
        "np.argsort(height, kind='stable')",
    ),
    Fault(
        "data/partition/helpers.py",
        "deal_labels",
        "np.lexsort((rng.random(num_labels), times_dealt))",
        "np.lexsort((times_dealt, rng.random(num_labels)))",
    ),
    Fault(
        "evaluation/client_statistics.py",
        "compute_spread",
        "math.ceil(len(tested) / 10)",
        "max(1, len(tested) // 10)",
    ),
    Fault(
        "training/record/summary.py",
        "get_last_eval_points",
        "entry.round > first",
        "entry.round >= first",
    ),
    Fault(
        "training/checkpoint.py",
        "CheckpointManager._prune",
        "{name for folder in remaining for name in _list_segment_files(folder)}",
        "{name for folder in remaining[-1:] for name in _list_segment_files(folder)}",
    ),
    Fault(
        "training/loop.py",
        "draw_cohort",
        "prng.key(context.seed, Stream.COHORT, round_idx)",
        "prng.key(context.seed, Stream.COHORT)",
    ),
    Fault(
        "evaluation/costs.py",
        "CostMeter.compute_server_cost",
        "cost.gradients + num_uploads * correction.gradients",
        "cost.gradients + correction.gradients",
    ),
)

RECORDER = '''
"""Note which tests execute which expressions, and how the tests end."""

import json
import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "reached"
known = set()
passed = set()
others = set()
seconds = {}


def reached(number):
    """Note the test that runs now, once for each expression in each process."""
    test = os.environ.get("PYTEST_CURRENT_TEST")
    if test is not None and (number, test) not in known:
        known.add((number, test))
        file = os.open(f"{FOLDER}/{number}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{test}\\n".encode())
        os.close(file)


reached._dynamo_marked_constant = True  # a compiler calls it when it looks, and leaves it out


def pytest_runtest_logreport(report):
    """Add up how long a test and what it needs took."""
    seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration
    if not report.passed:
        others.add(report.nodeid)
    elif report.when == "call":
        passed.add(report.nodeid)


def pytest_sessionfinish(session):
    """Write down how long the tests that passed took, in the process that hears of all of them."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        took = {test: seconds[test] for test in sorted(passed - others)}
        (FOLDER / "seconds.json").write_text(json.dumps(took))
'''


class Map(NamedTuple):
    """Which tests execute the expression of each fault, and how many seconds each test takes."""

    executing: dict[str, list[str]]
    seconds: dict[str, float]


class MissingError(LookupError):
    """A tree has not just one place for a fault."""


class Place(NamedTuple):
    """A file and the bytes of it that are an expression."""

    path: Path
    begin: int
    end: int


def place_of(fault: Fault, tree: Path) -> Place:
    """Return where the expression of a fault is in a tree; it must be in its function just once."""
    path = tree / LIBRARY / fault.module
    wanted = ast.dump(ast.parse(fault.before, mode="eval").body)
    try:
        text = path.read_bytes()
        function = function_in(ast.parse(text), fault.function)
    except (OSError, KeyError):
        raise MissingError(f"{path} has no function {fault.function}.") from None
    expressions = [node for node in ast.walk(function) if isinstance(node, ast.expr)]
    found = [node for node in expressions if ast.dump(node) == wanted]
    if len(found) != 1:
        where = f"{path}, {fault.function}"
        raise MissingError(f"{where}: {fault.before} is there {len(found)} times, not once.")
    rows = text.splitlines(keepends=True)
    begin = bytes_before(rows, found[0].lineno) + found[0].col_offset
    end = bytes_before(rows, found[0].end_lineno or 0) + (found[0].end_col_offset or 0)
    return Place(path, begin, end)


def bytes_before(rows: list[bytes], number: int) -> int:
    """Return how many bytes there are before a row, where the first one has the number 1."""
    return sum(len(row) for row in rows[: number - 1])


def function_in(module: ast.Module, name: str) -> ast.FunctionDef:
    """Return the function of a module with a name like Class.method."""
    node: ast.AST = module
    for part in name.split("."):
        members = {
            child.name: child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.ClassDef | ast.FunctionDef)
        }
        node = members[part]
    if not isinstance(node, ast.FunctionDef):
        raise KeyError(name)
    return node


def replace(place: Place, expression: str) -> None:
    """Put another expression into a place."""
    text = place.path.read_bytes()
    changed = text[: place.begin] + f"({expression})".encode() + text[place.end :]
    place.path.write_bytes(changed)


def copy(tree: Path, to: Path) -> None:
    """Copy a tree, and check that its library is the one that is imported there."""
    shutil.copytree(tree, to, ignore=shutil.ignore_patterns(*LEFT_OUT))
    code = "import fedtailor; print(fedtailor.__file__)"
    imported = run((sys.executable, "-c", code), to)
    expected = to / LIBRARY / "__init__.py"
    if imported.stdout.strip() != str(expected):
        sys.exit(f"{expected} should be imported, not: {imported.stdout}{imported.stderr}")


def run(command: tuple[str, ...], tree: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command in a copy of the tree, with the library of that copy."""
    folders = [str(tree / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    surroundings = {"PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command,
        cwd=tree,
        env=os.environ | surroundings,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def make_map(tree: Path, room: Path) -> Map:
    """Run all tests in a copy of the tree whose expressions note which test executes them."""
    copy(tree, room)
    (room / "src" / "fault_recorder.py").write_text(RECORDER)
    folder = room / "reached"
    folder.mkdir()
    there = {}
    for number, fault in enumerate(FAULTS):
        try:
            place = place_of(fault, room)
        except MissingError:
            continue
        there[number] = fault
        text = place.path.read_bytes()
        expression = text[place.begin : place.end].decode()
        replace(place, f"reached({number}) or ({expression})")
    for module in {fault.module for fault in there.values()}:
        import_recorder(room / LIBRARY / module)
    parallel = ("-n", str(AT_A_TIME), "--dist", "worksteal", "-p", "fault_recorder", "--tb=line")
    done = run((*PYTEST, *parallel), room)
    if done.returncode not in (PASSED, FAILED):
        sys.exit(f"The tests could not run:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    for row in done.stdout.splitlines():
        if row.startswith(("FAILED", "ERROR")):
            print(f"left out: {row}")
    seconds = json.loads((folder / "seconds.json").read_text())
    executing = {}
    for number, fault in there.items():
        executing[fault.name] = tests_in(folder / str(number), seconds)
    return Map(executing, seconds)


def import_recorder(path: Path) -> None:
    """Import what notes tests into a module, behind its docstring."""
    text = path.read_text()
    rows = text.splitlines(keepends=True)
    body = ast.parse(text).body
    rows.insert(body[1].lineno - 1, "from fault_recorder import reached\n")
    path.write_text("".join(rows))


def tests_in(file: Path, seconds: dict[str, float]) -> list[str]:
    """Return the tests that a file names and that pass.

    What is executed while a test is set up may serve all tests beside it, so they are taken too.
    """
    found: set[str] = set()
    for row in file.read_text().split("\n") if file.exists() else ():
        test, _, phase = row.rpartition(" ")
        found.add(test)
        if phase == "(setup)":
            found |= {other for other in seconds if file_of(other) == file_of(test)}
    return sorted(found & seconds.keys())


def file_of(test: str) -> str:
    """Return the file of a test."""
    return test.partition("::")[0]


def lots(fault: Fault, known: Map) -> list[list[str]]:
    """Return the tests that a fault meets, in lots of which the quick tests come first.

    In the first one are tests of the file that is named like the module, then each other function's
    quickest test with the quickest arguments, of files in the folder named like the module's first.
    """
    executing = known.executing[fault.name]
    module = Path(fault.module)
    close = f"test_{module.parent.name if module.stem == '__init__' else module.stem}"
    folder = Path("tests", fault.module).parent
    own_files = {file_of(test) for test in executing if Path(file_of(test)).stem == close}
    # What one test makes may be kept for those beside it, which then do not execute the expression.
    beside = {test for test in known.seconds if file_of(test) in own_files}
    ranks = {}
    earlier: Counter[str] = Counter()
    for test in sorted(beside.union(executing), key=known.seconds.__getitem__):
        function = test.partition("[")[0]
        own = file_of(test) in own_files
        near = Path(file_of(test)).parent == folder
        ranks[test] = (not own, 0 if own else earlier[function], not near)
        earlier[function] += 1
    ranked = sorted(ranks, key=ranks.__getitem__)
    parts = [ranked[:LOT], ranked[LOT:]]
    return [sorted(part, key=known.seconds.__getitem__) for part in parts if part]


def first_failure(tests: list[str], room: Path) -> str:
    """Run tests in a copy of the tree; return the first one that fails, or nothing."""
    done = run((*PYTEST, "-x", "-rfE", "--tb=no", "--show-capture=no", *tests), room)
    if done.returncode == PASSED:
        return ""
    failures = re.findall(r"^(?:FAILED|ERROR) (.+)", done.stdout, re.MULTILINE)
    for row in failures:
        named = [test for test in tests if row.startswith(test)]
        if named:
            return max(named, key=len)
    if done.returncode == INTERRUPTED and failures:
        return f"collection of {failures[0]}"
    if done.returncode < 0:
        return f"a crash by signal {-done.returncode}"
    sys.exit(f"Tests could not run in {room}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


@contextmanager
def seeded(fault: Fault, room: Path) -> Iterator[None]:
    """Have a fault in a copy of the tree for a while."""
    place = place_of(fault, room)
    text = place.path.read_bytes()
    replace(place, fault.after)
    try:
        yield
    finally:
        place.path.write_bytes(text)


def catch(fault: Fault, known: Map, room: Path) -> str:
    """Return the first test that fails with a fault and passes without it, or nothing."""
    for lot in lots(fault, known):
        left = list(lot)
        while left:
            with seeded(fault, room):
                failed = first_failure(left, room)
            if not failed:
                break
            if failed not in left or not first_failure([failed], room):
                return failed
            left.remove(failed)
    return ""


def told(fault: Fault) -> str:
    """Return a fault with its number among all of them."""
    return f"{FAULTS.index(fault) + 1:2}  {fault.name}"


def load_map(faults: list[Fault], tree: Path, file: Path | None, room: Path) -> Map:
    """Read the map of a tree, or make it where there is none."""
    if file is not None and file.exists():
        known = Map(**json.loads(file.read_text()))
        missing = [fault.name for fault in faults if fault.name not in known.executing]
        if missing:
            sys.exit(f"{file} was made for other faults, it lacks: {missing[0]}; remove it.")
        return known
    known = make_map(tree, room)
    if file is not None:
        file.write_text(json.dumps(known._asdict(), indent=1))
    return known


def check(faults: list[Fault], tree: Path, file: Path | None) -> None:
    """Seed faults one by one, and print what catches each."""
    with tempfile.TemporaryDirectory() as folder:
        known = load_map(faults, tree, file, Path(folder, "noting"))
        rooms: SimpleQueue[Path] = SimpleQueue()
        for number in range(AT_A_TIME):
            room = Path(folder, f"clean{number}")
            copy(tree, room)
            rooms.put(room)

        def outcome(fault: Fault) -> str:
            room = rooms.get()
            try:
                return catch(fault, known, room)
            finally:
                rooms.put(room)

        caught = 0
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            for fault, by in zip(faults, pool.map(outcome, faults), strict=True):
                caught += bool(by)
                count = len(known.executing[fault.name])
                said = f"caught by {by}" if by else f"ESCAPED all {count} tests that execute it"
                print(f"{told(fault)}\n    {said}", flush=True)
    print(f"{caught} of {len(faults)} caught.")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tree", type=Path, default=ROOT, help="a checkout of this project")
    parser.add_argument("--only", default="", help="only faults whose description has this text")
    parser.add_argument("--map", type=Path, help="a file with the tests that execute each fault")
    parser.add_argument("--list", action="store_true", help="print the faults and stop")
    given = parser.parse_args()
    tree = given.tree.resolve()
    faults = [fault for fault in FAULTS if given.only in fault.name]
    missing = []
    for fault in faults:
        if given.list:
            print(told(fault))
        try:
            place_of(fault, tree)
        except MissingError as problem:
            missing.append(f"Fault {FAULTS.index(fault) + 1} cannot be seeded: {problem}")
    if missing:
        sys.exit("\n".join(missing))
    if not given.list:
        check(faults, tree, given.map)


if __name__ == "__main__":
    main()
