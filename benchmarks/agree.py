"""Methods beside plain loops written from their papers, on PFLlib's split, and beside what is
published for it.

    python benchmarks/agree.py                                             digits, on a CPU
    python benchmarks/agree.py cifar10 --device cuda --compile             as published, on a GPU
    python benchmarks/agree.py cifar10 --rounds 2 --share 0.02             the same, tried out

Both sides see the same initial weights, cohorts and batches, so they must agree to rounding: in
float64 to the end, in float32 for the first rounds, after which rounding has grown. Every side is
scored as PFLlib scores: the share of all clients' test examples that the clients' models get right.
CIFAR-10 and Fashion-MNIST are those that `fedtailor data add` has installed, or come from
`--images FILE.npz`. What is done is kept in `runs/agree/`, and `--resume` goes on from there. A
complete run is written to `results/`, and its table into docs/agreement.md.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from anchor import page
from anchor.pfllib_split import NUM_CLIENTS
from anchor.plain_loops import LOOPS, PFedMeScoredAtW
from anchor.settings import CASES, Case, build_dataset, check_methods, load_images
from anchor.sides import Loop, Ours, Way, compute_gap, prepare
from fedtailor.data import FederatedDataset
from fedtailor.engines.context import allow_tf32
from fedtailor.errors import InputError
from fedtailor.storage.atomic import write_bytes
from results import load, machine, save

SEEDS = (0, 1, 2)
DIGITS = 4
"""Digits of a percentage that are kept."""
KEPT = Path("runs/agree")

Found = dict[str, Any]


def run_method(
    method: str, case: Case, data: FederatedDataset, seed: int, way: Way, with_loop: bool
) -> dict[str, Any]:
    """Train a method on both sides, and return their curves and how far apart they are.

    Args:
        method: Its name.
        case: What is trained.
        data: The clients, all of whom take part in each round.
        seed: Seed of weights and batches.
        way: How this project runs it.
        with_loop: Whether the plain loop runs too.
    """
    cohort_size = data.clients.count
    context = prepare(method, case, data, cohort_size, seed, way)
    ours = Ours(context, cohort_size, way)
    sides: dict[str, Ours | Loop] = {"ours": ours}
    loop = None
    if with_loop:
        loop = Loop(method, case, context, cohort_size)
        sides["loop"] = loop
    if with_loop and method == "pfedme":
        sides["scored at w_i"] = Loop(method, case, context, cohort_size, PFedMeScoredAtW)
    curves: dict[str, list[float]] = {name: [] for name in sides}
    gaps: dict[str, float] = {}
    for rounds_done in range(1, case.rounds + 1):
        for name, side in sides.items():
            side.train()
            if rounds_done % case.eval_every == 0 or rounds_done == case.rounds:
                curves[name].append(round(side.compute_accuracy(), DIGITS))
        if loop is not None and rounds_done == 1:
            gaps["gap after round 1"] = compute_gap(ours, loop)
    if loop is not None:
        gaps["gap"] = compute_gap(ours, loop)
    return {**curves, **gaps}


def run_all(asked: argparse.Namespace, case: Case, found: Found, kept: Path) -> None:
    """Run all methods and seeds that `found` does not have yet; it is kept after each of them.

    Args:
        asked: The arguments of the command.
        case: What is trained.
        found: The results, which are added to.
        kept: The file that they are kept in.
    """
    data = build_dataset(case, load_images(case, asked.images), asked.clients, asked.share)
    allow_tf32(False)  # on GPUs both sides would round differently
    way = Way(compile="training" if asked.compile else False, device=asked.device)
    for method in asked.methods:
        parts = ("ours", "loop", "gap after round 1", "gap", "scored at w_i")
        results = found["methods"].setdefault(method, {part: {} for part in parts})
        for seed in asked.seeds:
            if str(seed) in results["ours"]:
                continue
            new = run_method(method, case, data, seed, way, not asked.ours_alone)
            for part, value in new.items():
                results[part][str(seed)] = value
            keep(kept, found)
            print(describe(method, seed, new), flush=True)


def describe(method: str, seed: int, new: dict[str, Any]) -> str:
    """Return one run in a line."""
    ours = page.average_last(new["ours"])
    parts = [f"{method}, seed {seed}: fedtailor {ours:.2f}"]
    if "loop" in new:
        loop = page.average_last(new["loop"])
        parts.append(f"plain loop {loop:.2f}")
        parts.append(f"weights {new['gap after round 1']:.0e} apart after round 1")
        parts.append(f"{new['gap']:.0e} at the end")
    return ", ".join(parts)


def keep(path: Path, found: Found) -> None:
    """Replace the file of results as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, (json.dumps(found, indent=1) + "\n").encode())


def begin(asked: argparse.Namespace, case: Case, kept: Path) -> Found:
    """Return the results so far: those that are kept if they are to be resumed, else none."""
    setting = {
        "set": case.name,
        "clients": asked.clients,
        "rounds": case.rounds,
        "eval_every": case.eval_every,
        "share": asked.share,
        "seeds": asked.seeds,
        "lr": case.lr,
        "dtype": str(case.dtype).removeprefix("torch."),
        "device": asked.device,
        "ours_alone": asked.ours_alone,
    }
    if not asked.resume:
        return {
            "machine": machine(asked.device),
            "command": write_command(asked),
            "setting": setting,
            "methods": {},
        }
    if not kept.exists():
        raise SystemExit(f"agree: there is nothing to resume in '{kept}'; leave out --resume.")
    found: Found = json.loads(kept.read_text())
    changed = [name for name, value in setting.items() if found["setting"].get(name) != value]
    if changed:
        raise SystemExit(
            f"agree: what is kept in '{kept}' has another {', '.join(changed)}; give the same to "
            "resume it, or leave out --resume to begin anew."
        )
    return found


def write_command(asked: argparse.Namespace) -> str:
    """Return the command that was given, without paths."""
    words = ["python benchmarks/agree.py", asked.set]
    if asked.methods != list(LOOPS):
        words.append(f"--methods {','.join(asked.methods)}")
    if asked.seeds != list(SEEDS):
        words.append(f"--seeds {','.join(str(seed) for seed in asked.seeds)}")
    for name in ("rounds", "eval_every"):
        value = getattr(asked, name)
        if value is not None:
            words.append(f"--{name.replace('_', '-')} {value}")
    if asked.clients != NUM_CLIENTS:
        words.append(f"--clients {asked.clients}")
    if asked.share != 1:
        words.append(f"--share {asked.share:g}")
    if asked.device != "cpu":
        words.append(f"--device {asked.device}")
    if asked.compile:
        words.append("--compile")
    if asked.ours_alone:
        words.append("--ours-alone")
    return " ".join(words)


def is_complete(asked: argparse.Namespace) -> bool:
    """Return whether all of a set's own setting was run, so that the page may show it."""
    own_size = asked.rounds is None and asked.share == 1 and asked.clients == NUM_CLIENTS
    return own_size and asked.eval_every is None and set(asked.methods) == set(LOOPS)


def split_words(text: str) -> list[str]:
    """Return the words between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def split_numbers(text: str) -> list[int]:
    """Return the whole numbers between commas."""
    words = split_words(text)
    if not all(word.isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"must be whole numbers between commas, got '{text}'")
    return [int(word) for word in words]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description="Beside plain loops and published tables.")
    parser.add_argument("set", nargs="?", default="digits", choices=list(CASES))
    parser.add_argument("--images", help="an .npz file with x_train, y_train, x_test, y_test")
    parser.add_argument("--methods", type=split_words, default=list(LOOPS))
    parser.add_argument("--seeds", type=split_numbers, default=list(SEEDS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--eval-every", type=int)
    parser.add_argument("--clients", type=int, default=NUM_CLIENTS)
    parser.add_argument("--share", type=float, default=1.0, help="of each client's examples")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--ours-alone", action="store_true", help="without the plain loops")
    parser.add_argument("--resume", action="store_true", help="go on from what is kept")
    asked = parser.parse_args(arguments)
    check_methods(asked.methods)
    if not asked.methods or not asked.seeds:
        parser.error("--methods and --seeds must name at least one each")
    for name in ("rounds", "eval_every"):
        value = getattr(asked, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if not 0 < asked.share <= 1:
        parser.error(f"--share must be above 0 and at most 1, got {asked.share:g}")
    return asked


def main(arguments: list[str] | None = None) -> None:
    """Run what is asked for, print it, and write complete runs to the page."""
    asked = parse(arguments)
    case = CASES[asked.set]
    if asked.rounds is not None:
        case = case._replace(rounds=asked.rounds)
    if asked.eval_every is not None:
        case = case._replace(eval_every=asked.eval_every)
    kept = KEPT / f"{case.name}.json"
    found = begin(asked, case, kept)
    try:
        run_all(asked, case, found, kept)
    except InputError as error:
        raise SystemExit(f"agree: {error}") from None
    print(f"\n{page.render_case(case.name, found)}")
    if is_complete(asked):
        save(f"agree-{case.name}", found)
        write_page()


def write_page() -> None:
    """Write the tables of all complete runs into the page."""
    results = {name: load(f"agree-{name}") for name in CASES}
    page.PAGE.write_text(page.render_page(page.PAGE.read_text(), results))


if __name__ == "__main__":
    main()
