"""The specifications of a run and of a comparison: typed, with every default visible.

Keys are the fields of `RunConfig`; `data.KEY` is for the data set; any other key is a
hyper-parameter, of every method that has it, or of one method as `METHOD.KEY`. In a file,
`[data_options]` and `[hparams]` are tables, and `[hparams.fedsim]` is for one method. A comparison
may hold a method several times, told apart by a label behind an @: `fedmeta fedmeta@first-order
fedmeta@first-order.order=1`. For hyper-parameters the word "none" is None.
"""

import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from fedtailor import data as sources
from fedtailor import methods
from fedtailor.errors import require, require_distinct, suggest_name

NonNegativeInt = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
PositiveInt = Annotated[int, Field(strict=True, ge=1, lt=2**63)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
StrictBool = Annotated[bool, Field(strict=True)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]


class CommonConfig(BaseModel):
    """The part of a specification that the runs of a comparison have in common."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    data: str = "digits"
    """A name that `fedtailor data` lists, or an .npz file."""
    data_options: dict[str, Any] = {}
    """Options of the data set."""
    model: str = "mlp"
    """A name that `fedtailor run --help` lists, or FILE.py:NAME.

    The latter is a class or function that makes an nn.Module or a fedtailor Task.
    """
    hidden: tuple[PositiveInt, ...] = (64,)
    """Widths of the hidden layers of the mlp or the lstm."""
    activation: Literal["relu", "elu", "tanh"] = "relu"
    """Activation of the mlp."""
    pretrain: NonNegativeInt = 0
    """Epochs of pre-training on the server's data before the first round."""
    pretrain_lr: PositiveFloat = 0.1
    pretrain_batch: PositiveInt = 20
    rounds: PositiveInt = 50
    budget: Literal["rounds", "gradients", "bytes"] = "rounds"
    """What all methods of a comparison get the same amount of."""
    cohort: PositiveInt = 10
    """Clients a round."""
    engine: Literal["vectorized", "sequential", "distributed"] = "vectorized"
    device: str = "cpu"
    """cpu, cuda or mps."""
    precision: Literal["float32", "tf32", "bf16", "float64"] = "float32"
    """What models calculate in; with tf32 and bf16 parameters are float32."""
    chunk: PositiveInt | None = None
    """Clients that are stacked at a time; none: as many as fit."""
    compile: StrictBool | Literal["auto", "training"] = "auto"
    """training: not personalizing and scoring; auto: training, if counts say that it pays."""
    threads: PositiveInt | None = None
    """Threads of the CPU; none: as many as a step has work for, but no more than torch has."""
    client_state: Literal["ram", "files"] = "ram"
    """Where client states are kept while training."""
    evaluate_every: PositiveInt | None = None
    """Rounds between two evaluations; none: ten evaluations in all."""
    eval_clients: PositiveInt = 100
    """Clients of a group that are evaluated during training, at most."""
    final_eval_clients: PositiveInt | None = None
    """Clients of a group that are evaluated at the end; none: all of them."""
    eval_groups: Literal["all", "validation"] = "all"
    """The groups that are evaluated at all."""
    target: FiniteFloat | None = None
    """A value of the headline metric; the first round that reaches it is recorded."""
    patience: PositiveInt | None = None
    """Evaluations without improvement for validation clients before training stops early.

    None: it goes on to the last round.
    """
    checkpoint_every: PositiveInt = 10
    """Rounds between two checkpoints."""
    log: Literal["none", "tensorboard", "mlflow"] = "none"
    """A logger besides the record."""


class RunConfig(CommonConfig):
    """One run: one method, one seed."""

    method: str = "fedsim"
    label: str = ""
    """The method's name in tables and folders, if another one."""
    hparams: dict[str, Any] = {}
    """Hyper-parameters of the method."""
    tuned: tuple[str, ...] = ()
    """Hyper-parameters whose values were chosen by validation clients."""
    seed: Seed = 0
    start_from: str = ""
    """The folder of a run whose global weights are the first weights of this one."""

    def resolve(self) -> Self:
        """Return the same with every default filled in.

        Everything is checked that can be checked without reading data.
        """
        for key in ("data", "model", "device", "label"):
            value = getattr(self, key)
            require("\0" not in value, f"{key}: must not hold a null character, got {value!r}.")
        hparams = asdict(methods.make_hparams(self.method, **self.hparams))
        for name in self.tuned:
            require(
                name in hparams,
                f"tuned: {self.method} has no hyper-parameter '{name}'; "
                f"{suggest_name(name, hparams)}",
            )
        require(
            not self.start_from or not self.pretrain,
            f"start_from: the first weights come from the run in '{self.start_from}', so they "
            f"cannot be pre-trained; leave out pretrain={self.pretrain} or start_from.",
        )
        data = self.data
        if data.endswith(".npz"):
            data = os.path.realpath(data)  # resolving a `Path` fails for a loop of links
        changes = {
            "data": data,
            "data_options": sources.fill_defaults(self.data, self.data_options),
            "model": self._resolve_model(),
            "hparams": hparams,
            "evaluate_every": self.evaluate_every or compute_evaluation_interval(self.rounds),
            "start_from": str(Path(self.start_from).resolve()) if self.start_from else "",
        }
        return self.model_copy(update=changes)

    def _resolve_model(self) -> str:
        """Return the model with an absolute path if it is made by a file."""
        file, colon, name = self.model.rpartition(":")
        if not colon:
            return self.model
        is_python_file = file.endswith(".py") and Path(file).is_file()
        require(is_python_file, f"model: there is no Python file '{file}'.")
        return f"{os.path.realpath(file)}:{name}"


def compute_evaluation_interval(rounds: int) -> int:
    """Return the rounds between two evaluations where none are asked for."""
    return max(1, rounds // 10)


BASELINES = ("local", "fedavg")
"""Methods that every table has: local training, and FedAvg without and with fine-tuning."""


def is_local_baseline(method: str) -> bool:
    """Return whether this is the method that clients' scores under others are compared with."""
    return method == "local"


def is_fine_tuned_baseline(method: str) -> bool:
    """Return whether scores after personalizing are shown as another baseline, "+ fine-tuning"."""
    return method == "fedavg"


class ComparisonConfig(CommonConfig):
    """Several methods and seeds on the same clients, cohorts and first weights."""

    methods: tuple[str, ...] = Field(default=("local", "fedavg", "fedprox", "fedsim"), min_length=1)
    baselines: StrictBool = True
    """Whether commands add local and fedavg where they are missing."""
    seeds: tuple[Seed, ...] = Field(default=(0, 1, 2), min_length=1)
    hparams: dict[str, Any] = {}
    """Hyper-parameters for all methods, or {method: {...}} for one."""
    tuned: dict[str, dict[str, Any]] = {}
    """Those of them that `fedtailor tune` has chosen, for each method."""
    tune: dict[str, Any] = {}
    """What `fedtailor tune` tries: values of hyper-parameters, or {method: {...}}."""
    trials: Annotated[PositiveInt, Field(le=10_000)] = 4
    """Trials for each method."""
    tuning_seed: Seed = 100
    """The seed of trials."""

    def make_run_configs(self) -> list[RunConfig]:
        """Return the specifications of the runs, resolved."""
        self.check_distinct()
        return [
            self.make_run_config(variant, seed) for variant in self.methods for seed in self.seeds
        ]

    def check_distinct(self) -> None:
        """Raise an InputError for a method or a seed that is named twice: one run, in one folder.

        Several runs of a method are told apart by labels.
        """
        remedy = "leave one out, or give it a label (METHOD@LABEL)"
        require_distinct("methods", self.methods, remedy)
        require_distinct("seeds", self.seeds)

    def make_run_config(self, variant: str, seed: int, **overrides: Any) -> RunConfig:
        """Return the specification of one run, resolved.

        Args:
            variant: A method, perhaps with a label.
            seed: The seed of the run.
            **overrides: Other values for some keys; of `hparams` only those that are given are
                replaced.
        """
        hparams = self.collect_hparams(variant) | overrides.pop("hparams", {})
        chosen = self.tuned.get(variant, {})
        values = self.get_common_values() | {
            "method": parse_method(variant),
            "label": variant if "@" in variant else "",
            "seed": seed,
            "hparams": hparams,
            "tuned": tuple(key for key, value in chosen.items() if hparams.get(key) == value),
        }
        return RunConfig(**values | overrides).resolve()

    def resolve(self) -> Self:
        """Return the same with all defaults, and a table of hyper-parameters for each method."""
        configs = {
            variant: self.make_run_config(variant, self.seeds[0]) for variant in self.methods
        }
        first = next(iter(configs.values()))
        common = first.model_dump(include=set(CommonConfig.model_fields))
        hparams = {variant: config.hparams for variant, config in configs.items()}
        return self.model_copy(update=common | {"hparams": hparams})

    def add_baselines(self) -> Self:
        """Return the same with missing baselines in front, unless they are declined."""
        if not self.baselines:
            return self
        present = [parse_method(variant) for variant in self.methods]
        missing = tuple(name for name in BASELINES if name not in present)
        return self.model_copy(update={"methods": (*missing, *self.methods)})

    def get_common_values(self) -> dict[str, Any]:
        """Return the values that all runs have in common."""
        return self.model_dump(include=set(CommonConfig.model_fields))

    def collect_hparams(self, variant: str) -> dict[str, Any]:
        """Return the hyper-parameters of a variant.

        Those for all methods are overridden by those for the method, and these by those for the
        variant.
        """
        valid = list_hparam_names(variant)
        for_all = {
            key: value
            for key, value in self.hparams.items()
            if not isinstance(value, dict) and key in valid
        }
        for_method = self.hparams.get(parse_method(variant), {})
        for_variant = self.hparams.get(variant, {})
        return {**for_all, **for_method, **for_variant}


def parse_method(variant: str) -> str:
    """Return the method of a variant: `fedmeta@first-order` is fedmeta."""
    method, at, label = variant.partition("@")
    is_plain = all(letter.isalnum() or letter in "-_.+" for letter in label)
    require(
        bool(label) == bool(at) and is_plain,
        f"'{variant}': behind the @ letters, digits and -_.+ are expected.",
    )
    return method


def list_hparam_names(variant: str) -> list[str]:
    """Return the names of a method's hyper-parameters."""
    hparams_class = methods.load_method_module(parse_method(variant)).HParams
    return [field.name for field in fields(hparams_class)]
