"""Several methods on the same clients, cohorts and first weights; one table."""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from rich import box
from rich.table import Table

from fedtailor import engines
from fedtailor.losses import Metric
from fedtailor.run.fitting import Fitted, prepare, trained
from fedtailor.run.loop import Cost, Round
from fedtailor.run.metrics import Scores, spread
from fedtailor.run.spec import Comparison


class Entry(NamedTuple):
    """A method that has been trained and scored."""

    name: str
    metric: Metric
    scores: dict[str, Scores]
    cost: Cost
    seconds: float  # of everything
    notes: tuple[str, ...]


def compare(spec: Comparison, began: Callable[[str], None], went_on: Callable[[Round], None]) -> list[Entry]:
    """Trains and scores every method of a comparison; `began` and `went_on` hear of methods and rounds."""
    data = spec.dataset()
    engines.check(spec.engine, spec.chunk)
    settings = [
        prepare(
            name,
            spec.model_for(data),
            data,
            rounds=spec.rounds,
            cohort=spec.cohort,
            seed=spec.seed,
            device=spec.device,
            **spec.hyper.get(name, {}),
        )
        for name in spec.methods
    ]
    entries = []
    for setting in settings:
        began(setting.method.name)
        start = time.perf_counter()
        engine = engines.make(setting, spec.engine, spec.chunk, spec.compile)
        fitted = trained(setting, engine, spec.rounds, spec.cohort, went_on)
        entries.append(_entry(fitted, time.perf_counter() - start))
    return entries


def _entry(fitted: Fitted, seconds: float) -> Entry:
    setting = fitted.setting
    return Entry(setting.method.name, setting.task.metrics[0], fitted.scores, fitted.cost, seconds, fitted.engine.notes)


def table(entries: list[Entry], title: str) -> Table:
    """Mean, standard deviation and worst tenth over clients, before and after personalising, and costs."""
    made = Table(title=title, caption=_CAPTION, box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    made.title_justify = made.caption_justify = "left"
    for heading in ("method", "clients"):
        made.add_column(heading, no_wrap=True)
    for heading in ("before", "worst\ntenth", "after", "worst\ntenth", "MB", "s"):
        made.add_column(heading, justify="right", no_wrap=True)
    for entry in entries:
        if entry.name == "fedavg":
            _add_rows(made, entry._replace(scores={g: s._replace(after={}) for g, s in entry.scores.items()}))
            entry = entry._replace(name="fedavg + fine-tuning")
        _add_rows(made, entry)
    return made


_CAPTION = (
    "Test accuracy in %: mean ± standard deviation over clients, and mean of the worst tenth of them; before and after "
    "personalising. local: clients who took part in training; new: people never seen. MB: sent down and up in all "
    "rounds; s: seconds of training, personalising and scoring."
)


def _add_rows(made: Table, entry: Entry) -> None:
    for number, (group, scores) in enumerate(entry.scores.items()):
        cells = [entry.name if number == 0 else "", group]
        for values in (scores.before, scores.after):
            cells += _figures(values.get(entry.metric.name), entry.metric)
        costs = (f"{(entry.cost.bytes_down + entry.cost.bytes_up) / 1e6:.1f}", f"{entry.seconds:.1f}")
        made.add_row(*cells, *(costs if number == 0 else ()), end_section=number == len(entry.scores) - 1)


def _figures(values: np.ndarray | None, metric: Metric) -> list[str]:
    if values is None:
        return ["", ""]
    found = spread(values, metric.higher_is_better)
    return [f"{100 * found.mean:.1f} ±{100 * found.std:4.1f}", f"{100 * found.worst_tenth:.1f}"]
