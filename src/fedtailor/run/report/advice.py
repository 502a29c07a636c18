"""Which method to use when: sentences made from the figures by rules that are written under them.

A lead is a difference that is larger than the spread over seeds of either method; anything smaller is called level, and
of one seed no spread is known. Methods that have diverged are left out.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fedtailor.run.report import formats
from fedtailor.run.report.alone import against, alone_in
from fedtailor.run.report.figures import Column, Row, groups_of, in_order, level, rows, stages_of
from fedtailor.run.report.grouping import Line, Metric
from fedtailor.run.report.phrases import Words, cost, joined, listed, named, plain, sent
from fedtailor.run.report.wording import PEOPLE, diverged

RULES = (
    "How these sentences are made: the spread is the sample standard deviation over seeds; a lead is a difference that "
    "is larger than the spread of either of the two, and anything smaller is called level; cheapest is what sends "
    "least, then computes least, of the best and those level with it. Costs are of training, not of personalising."
)
ONE_SEED = " With one seed there is no spread: the order is that of a single draw, and no lead is claimed."
NOBODY_ALONE = "Nobody learns alone here; add the method local to see whom training together does not help."
CHEAPER = 0.95  # of the traffic, to be worth mentioning


class Advice(NamedTuple):
    """An answer to a question."""

    question: str
    answer: Words


def advice(lines: Sequence[Line], metric: Metric) -> list[Advice]:
    """Every question that the figures answer; none before two methods are scored."""
    groups = groups_of(lines)
    made = [row for row in rows(lines, metric) if any(f"{group}.after" in row.cells for group in groups)]
    lost = [row for row in made if diverged(lines[row.line])]
    whole = [row for row in made if row not in lost]
    if len(made) < 2:
        return []
    found = [
        *_firsts(whole, groups, metric, stages_of(lines)[1:-1]),
        *(Advice(f"Cheapest for {PEOPLE[group]}", _cheapest(whole, group, metric)) for group in groups),
        Advice("Worse off than alone", _alone(whole, lines, groups, metric)),
        Advice("Is personalising worth it", _personalising(whole, groups, metric)),
        Advice("Left out", listed([(row,) for row in lost], " diverged: the loss of some clients is not finite.")),
    ]
    return [each for each in found if each.answer]


def rules(lines: Sequence[Line]) -> str:
    """By which rules the sentences were made."""
    return RULES + (ONE_SEED if all(len(line.runs) == 1 for line in lines) else "")


def _firsts(made: Sequence[Row], groups: Sequence[str], metric: Metric, steps: Sequence[str]) -> Iterator[Advice]:
    """Who is first: for everybody, for those who fare worst, and for newcomers after so many passes."""
    for group in groups:
        yield Advice(f"Best for {PEOPLE[group]}", _first(made, _column(group, "after", metric), metric))
    for group in groups:
        worst = _first(made, _column(group, "worst", metric), metric)
        yield Advice(f"Best for the worst tenth of {PEOPLE[group]}", worst)
    for step in steps:
        words = _first(made, _column(groups[-1], step, metric), metric)
        yield Advice(f"Best for {PEOPLE[groups[-1]]} after {'one pass' if step == '1' else f'{step} passes'}", words)


def _first(made: Sequence[Row], column: Column, metric: Metric) -> Words:
    peers, rest = _contest(made, column)
    if len(peers) + len(rest) < 2:
        return ()
    following = (*named(rest[0], column, metric), ".") if rest else ()
    first = peers[0].cells[column.key]
    if len(peers) > 1:
        then = " are level; next is " if rest else " are level."
        return (*listed([named(row, column, metric) for row in peers], then), *following)
    lead = formats.apart(first.mean - rest[0].cells[column.key].mean, metric)
    if first.over_seeds is None:
        return (*named(peers[0], column, metric), " stands first on one seed, before ", *following)
    return (*named(peers[0], column, metric), " leads ", *named(rest[0], column, metric), f" by {lead}.")


def _cheapest(made: Sequence[Row], group: str, metric: Metric) -> Words:
    """Of the best and those level with it, which costs least; and what sends less still, at a loss."""
    column = _column(group, "after", metric)
    peers, rest = _contest(made, column)
    if len(peers) + len(rest) < 2:
        return ()
    work = "flops" if all("flops" in row.cells for row in made) else "steps"
    chosen = min(peers, key=lambda row: (sent(row), row.cells[work].mean))
    alone = "" if len(peers) > 1 else ", and nothing else is level with it"
    cheaper = [row for row in rest if sent(row) < CHEAPER * sent(chosen)]
    words: Words = (chosen, f": {cost(chosen, work)}{alone}")
    if cheaper:
        loss = formats.apart(chosen.cells[column.key].mean - cheaper[0].cells[column.key].mean, metric)
        words = (*words, "; ", cheaper[0], f" gives up {loss} for {cost(cheaper[0], work)}")
    return (*words, ".")


def _alone(made: Sequence[Row], lines: Sequence[Line], groups: Sequence[str], metric: Metric) -> Words:
    """With which method the fewest and the most clients fare worse than alone."""
    alone = alone_in(lines)
    if alone is None:
        return (NOBODY_ALONE,)
    shares = []
    for row in (row for row in made if row.line != alone):
        counts = [against(lines[row.line], lines[alone], g, metric.name, metric.higher_is_better) for g in groups]
        if all(count.of for count in counts):
            shares.append((row, [count.worse / count.of for count in counts]))
    shares.sort(key=lambda found: found[1])
    said = [(row, f" ({_people(worse, groups)})") for row, worse in shares]
    if len(said) < 2:
        return (*joined(said, ""), ".") if said else ()
    return ("Fewest with ", *said[0], ", most with ", *said[-1], ".")


def _people(worse: Sequence[float], groups: Sequence[str]) -> str:
    shares = zip(worse, groups, strict=True)
    return ", ".join(f"{100 * share:.0f} % of {PEOPLE[group]}" for share, group in shares)


def _personalising(made: Sequence[Row], groups: Sequence[str], metric: Metric) -> Words:
    """For each group of clients, which methods gain, which lose, and which do neither beyond the spread."""
    found: dict[str, tuple[Words, list[str]]] = {}
    for group in groups:
        there = [row for row in made if f"{group}.before" in row.cells and f"{group}.after" in row.cells]
        words = _gains(there, group, metric) if there else ()
        found.setdefault(plain(words), (words, []))[1].append(PEOPLE[group])
    said = [(f"{' and '.join(people).capitalize()}: ", *words) for words, people in found.values() if words]
    return (*joined(said, ". "), ".") if said else ()


def _gains(made: Sequence[Row], group: str, metric: Metric) -> Words:
    sign = 1 if metric.higher_is_better else -1
    kinds: dict[str, list[Words]] = {"gain": [], "lose": [], "stay level": []}
    for row in made:
        before, after = row.cells[f"{group}.before"], row.cells[f"{group}.after"]
        better = sign * (after.mean - before.mean) > 0
        kinds["stay level" if level(before, after) else "gain" if better else "lose"].append((row,))
    some = {kind: found for kind, found in kinds.items() if found}
    if len(some) == 1:
        return (f"all {next(iter(some))}",)
    return joined([listed(found, f" {_verb(kind, len(found))}") for kind, found in some.items()], ", ")


def _verb(kind: str, count: int) -> str:
    return kind if count > 1 else {"gain": "gains", "lose": "loses", "stay level": "stays level"}[kind]


def _contest(made: Sequence[Row], column: Column) -> tuple[list[Row], list[Row]]:
    """The best with those level with it, and the rest, both in order."""
    order = [made[place] for place in in_order(made, column)]
    peers = [row for row in order if level(order[0].cells[column.key], row.cells[column.key])]
    return peers, [row for row in order if row not in peers]


def _column(group: str, stage: str, metric: Metric) -> Column:
    return Column(f"{group}.{stage}", group, stage, metric.higher_is_better, metric.scale)
