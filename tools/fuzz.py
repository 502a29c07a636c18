"""Run seeded hostile cases, each in a forked child, and tell what they broke.

    python tools/fuzz.py [--minutes 20] [--seed 0] [--target NAME]... [--limit 60] [--json FILE]
    python tools/fuzz.py --target NAME --case N [--seed S]    one case again, and all it prints
    python tools/fuzz.py --cases 12                           so many cases of each target

Targets are specifications, arguments, data (files), stores and folders; tests/fuzz/fuzzing has
them. Case N of a target under a seed is always the same. The exit code is 1 if there are findings:

    traceback    an exception that is no error of fedtailor
    signal       a segmentation fault or another signal; exit: an exit code that no command has
    hang         no end within the limit of seconds of a processor, or within ten minutes
    raw          control characters, or bytes that are not UTF-8, on the terminal
    sentence     a refusal that is not one sentence on one line
    difference   a damaged file was accepted, and the result is another one
    lost         after a refusal and with the file put back, the result is another one
    refused      an untouched or verified folder was refused
"""

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: threads do not survive a fork
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "fuzz"))
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from fuzzing.campaign import (  # noqa: E402
    TARGETS,
    Budget,
    Campaign,
    Finding,
    Finished,
    collect_findings,
    run_campaign,
    run_single,
    warm_up,
)
from fuzzing.children import FINE, LOG_FOLDER, Limits  # noqa: E402

import fedtailor  # noqa: E402
from fedtailor.ops.cpp_build import load_library  # noqa: E402
from fedtailor.storage.paths import DATA_DIR_ENV  # noqa: E402

SHARED_MEMORY = Path("/dev/shm")


def main() -> int:
    """Run what the command line asks for, and return the exit code."""
    args = _parse_args()
    memory_folder = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    folder = memory_folder / f"fuzz-{os.getpid():08}"
    shutil.rmtree(folder, ignore_errors=True)  # of an older process with the same number
    folder.mkdir()
    try:
        _isolate(folder)
        warm_up(folder / "warm-up")
        if args.case is not None:
            return _repeat(args, folder)
        return _run_all(args, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=20.0, help="for all targets together")
    parser.add_argument("--cases", type=int, help="cases of each target, whatever time they take")
    parser.add_argument("--case", type=int, help="the one case to run")
    parser.add_argument(
        "--limit", type=float, default=60.0, help="seconds of a processor for a case"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes that run cases")
    parser.add_argument("--json", type=Path, help="also write cases and findings to this file")
    args = parser.parse_args()
    if args.case is not None and len(args.target or ()) != 1:
        parser.error("--case needs one --target")
    return args


def _isolate(folder: Path) -> None:
    """Load compiled code from where it lies, and keep cases from everything of the user's."""
    for source in Path(fedtailor.__file__).parent.rglob("*.cpp"):
        load_library(source)
    os.environ["HOME"] = str(folder)
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    os.environ[DATA_DIR_ENV] = str(folder / "user-data")


def _repeat(args: argparse.Namespace, folder: Path) -> int:
    """Run one case and print everything about it."""
    campaign = Campaign(args.target[0], args.seed, Budget(), Limits(args.limit), folder / "one")
    finished = run_single(campaign, args.case)
    for path in sorted((campaign.folder / f"case-{args.case}" / LOG_FOLDER).iterdir()):
        content = path.read_text(errors="backslashreplace")
        if content:
            print(f"--- {path.name}\n{ascii(content) if path.suffix != '' else content}")
    print(f"--- case\n{finished.description}")
    print(
        f"--- verdict\n{finished.verdict.kind}: {finished.verdict.place}\n{finished.verdict.text}"
    )
    return int(finished.verdict.kind not in FINE)


def _run_all(args: argparse.Namespace, folder: Path) -> int:
    names = args.target or list(TARGETS)
    seconds = None if args.cases is not None else 60 * args.minutes / len(names)
    budget = Budget(num_cases=args.cases, seconds=seconds, workers=args.workers)
    started_at = time.monotonic()
    finished: list[Finished] = []
    for name in names:
        campaign = Campaign(name, args.seed, budget, Limits(args.limit), folder / name)
        target_started_at = time.monotonic()
        cpu_before = _get_cpu_seconds()
        cases = list(run_campaign(campaign))
        finished += cases
        seconds_used = time.monotonic() - target_started_at
        _print_cases(name, cases, seconds_used, _get_cpu_seconds() - cpu_before)
    findings = collect_findings(finished)
    _print_findings(findings, args.seed)
    minutes = (time.monotonic() - started_at) / 60
    num_bad = sum(len(finding.numbers) for finding in findings)
    print(
        f"{len(finished)} cases in {minutes:.1f} minutes, seed {args.seed}: "
        f"{num_bad} with a finding, {len(findings)} distinct findings."
    )
    if args.json:
        content = {"cases": finished, "findings": [vars(finding) for finding in findings]}
        args.json.write_text(json.dumps(content, indent=1))
    return int(bool(findings))


def _get_cpu_seconds() -> float:
    """Return the seconds of CPUs that ended child processes have used."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _print_cases(name: str, cases: Sequence[Finished], seconds: float, cpu: float) -> None:
    kinds = Counter(case.verdict.kind for case in cases)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    times = f"{seconds:.0f} s (CPUs {cpu:.0f} s)"
    print(f"{name:15} {len(cases):6} cases in {times}: {counts}", flush=True)


def _print_findings(findings: Sequence[Finding], seed: int) -> None:
    for finding in findings:
        verdict = finding.verdict
        print(f"\n{verdict.kind}: {finding.target}: {verdict.place} ({len(finding.numbers)} cases)")
        print(f"  {finding.description}"[:300])
        last_line = next(iter(verdict.text.strip().splitlines()[-1:]), "")
        print(f"  {last_line[:300]}")
        print(f"  {finding.format_command(seed)}")
    print()


if __name__ == "__main__":
    sys.exit(main())
