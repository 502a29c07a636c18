"""The scenarios, the settings that are tried in each, and files of one JSON row a scenario."""

import json
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.training.config import RunConfig
from fedtailor.training.overrides import read_run_config

HERE = Path(__file__).parent

Row = dict[str, Any]


class Setting(NamedTuple):
    """A method with its strength, as `fedtailor run method=... gamma=...` trains it."""

    method: str
    hparams: dict[str, float]

    @property
    def name(self) -> str:
        """The setting as words of a command line."""
        return " ".join([self.method, *(f"{key}={value:g}" for key, value in self.hparams.items())])


SETTINGS = (
    Setting("fedavg", {}),
    Setting("fsl", {"gamma": 0.0}),
    Setting("fsl", {"gamma": 0.1}),
    Setting("fsl", {"gamma": 0.3}),
    Setting("fsl", {"gamma": 1.0}),
    Setting("fedsim", {"beta": 0.0}),
    Setting("fedsim", {"beta": 0.25}),
    Setting("fedsim", {"beta": 1.0}),
)
"""FedAvg, and the methods with server data at several strengths; at 0 they use no server data."""


class Scenario(NamedTuple):
    """Words of a command line, under a name."""

    name: str
    words: tuple[str, ...]

    def make_config(self, setting: Setting, seed: int) -> RunConfig:
        """Return the specification of a run of one setting."""
        hparams = [f"{key}={value}" for key, value in setting.hparams.items()]
        return read_run_config([f"method={setting.method}", *self.words, *hparams, f"seed={seed}"])


def read_scenarios(path: Path) -> list[Scenario]:
    """Return the scenarios of a TOML file, in its order."""
    content = tomllib.loads(path.read_text())
    scenarios = []
    for group, words_by_name in content["scenarios"].items():
        for name, words in words_by_name.items():
            all_words = " ".join([content["common"], content["groups"][group], words])
            scenarios.append(Scenario(f"{group}: {name}", _drop_overridden(all_words.split())))
    return scenarios


def _drop_overridden(words: list[str]) -> tuple[str, ...]:
    """Return the words without those whose key a later one has, too."""
    values = {}
    for word in words:
        key, _, value = word.partition("=")
        values[key] = value
    return tuple(f"{key}={value}" for key, value in values.items())


def read_rows(path: Path) -> dict[str, Row]:
    """Return the rows of a file by scenario; none if there is no file."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["scenario"]: row for row in rows}


def append_row(path: Path, row: Row) -> None:
    """Append a row to a file."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
