"""The specifications of a run and of a comparison: typed, with every default visible.

Keys are the fields of `RunConfig`; `data.KEY` is for the data set, whose seed is that of the run
unless `data.seed` fixes another one, the same for all runs of a comparison; any other key is a
hyper-parameter, of every method that has it, or of one method as `METHOD.KEY`. In a file,
`[data_options]` and `[hparams]` are tables, and `[hparams.fedsim]` is for one method. A comparison
may hold a method several times, told apart by a label behind an @: `fedmeta fedmeta@first-order
fedmeta@first-order.order=1`. For hyper-parameters the word "none" is None.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from types import MappingProxyType
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
SeedKey = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]*)$")]
"""A seed as the key of a table."""


class CommonConfig(BaseModel):
    """The part of a specification that the runs of a comparison have in common."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    data: str = "digits"
    """A name that `fedtailor data` lists, or an .npz file."""
    data_options: dict[str, Any] = {}
    """Options of the data set; without a `seed` among them it is the seed of the run."""
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
    finetune: NonNegativeInt | Literal["paper"] = 5
    """Passes over a client's examples when personalizing, the same for every method.

    paper: those of each method's paper. finetune_epochs and finetune_steps override it.
    """
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
        hparams = get_default_hparams(self.method, self.finetune, **self.hparams)
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
            "data_options": self._resolve_data_options(),
            "model": self._resolve_model(),
            "hparams": hparams,
            "evaluate_every": self.evaluate_every or compute_evaluation_interval(self.rounds),
            "start_from": str(Path(self.start_from).resolve()) if self.start_from else "",
        }
        return self.model_copy(update=changes)

    @property
    def data_seed(self) -> int | None:
        """The seed of the data's groups, partition and server data; None before it is resolved."""
        seed: int | None = self.data_options.get("seed")
        return seed

    def without_seeds(self) -> Self:
        """Return the same with no seed of its own, equal for runs that differ in seeds alone."""
        data_options = self.data_options | {"seed": None}
        return self.model_copy(update={"seed": 0, "data_options": data_options})

    def _resolve_data_options(self) -> dict[str, Any]:
        """Return all options of the data set, of which the seed follows that of the run."""
        options = sources.fill_defaults(self.data, self.data_options)
        if "seed" in options and self.data_seed is None:
            options["seed"] = self.seed
        return options

    def _resolve_model(self) -> str:
        """Return the model with an absolute path if it is made by a file."""
        file, colon, name = self.model.rpartition(":")
        if not colon:
            return self.model
        is_python_file = file.endswith(".py") and Path(file).is_file()
        require(is_python_file, f"model: there is no Python file '{file}'.")
        return f"{os.path.realpath(file)}:{name}"


def get_default_hparams(
    method: str, finetune: int | Literal["paper"], **given: Any
) -> dict[str, Any]:
    """Return a method's hyper-parameters with the defaults that runs have.

    Args:
        method: The name of the method.
        finetune: Passes when personalizing, or "paper" for the method's own default.
        **given: Hyper-parameters that have other values.
    """
    budget: dict[str, Any] = {}
    if finetune != "paper":
        budget = {"finetune_epochs": finetune, "finetune_steps": None}
    return asdict(methods.make_hparams(method, **budget | given))


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
    """Several methods, which with one seed have the same clients, cohorts and first weights."""

    methods: tuple[str, ...] = Field(default=("local", "fedavg", "fedprox", "fedsim"), min_length=1)
    baselines: StrictBool = True
    """Whether commands add local and fedavg where they are missing."""
    seeds: tuple[Seed, ...] = Field(default=(0, 1, 2, 3, 4), min_length=1)
    hparams: dict[str, Any] = {}
    """Hyper-parameters for all methods, or {method: {...}} for one."""
    tuned: dict[str, dict[SeedKey, dict[str, Any]]] = {}
    """What `fedtailor tune` has chosen: {method: {seed of the data: {hyper-parameter: value}}}.

    A value under `hparams` for the same method, with its label, counts instead.
    """
    tune: dict[str, Any] = {}
    """What `fedtailor tune` tries: values of hyper-parameters, or {method: {...}}."""
    trials: Annotated[PositiveInt, Field(le=10_000)] = 4
    """Trials for each method on each split of the data."""
    tuning_seed: Seed = 100
    """The seed of trials, except for the data, which they share with the runs they are for."""

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
        chosen = self.get_tuned(variant, self.get_data_seed(seed))
        hparams = self.collect_hparams(variant, chosen) | overrides.pop("hparams", {})
        values = self.get_common_values() | {
            "method": parse_method(variant),
            "label": variant if "@" in variant else "",
            "seed": seed,
            "hparams": hparams,
            "tuned": tuple(key for key, value in chosen.items() if hparams.get(key) == value),
        }
        return RunConfig(**values | overrides).resolve()

    def resolve(self) -> Self:
        """Return the same with all defaults, and a table of hyper-parameters for each method.

        What was chosen stays under `tuned`, and the seed of the data open if it is not given.
        """
        configs = {
            variant: self.make_run_config(variant, self.seeds[0]) for variant in self.methods
        }
        first = next(iter(configs.values()))
        common = first.model_dump(include=set(CommonConfig.model_fields))
        if "seed" in first.data_options:
            seed = self.data_options.get("seed")
            common["data_options"] = first.data_options | {"seed": seed}
        hparams = {
            variant: _drop_keys(config.hparams, config.tuned) for variant, config in configs.items()
        }
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

    def get_data_seed(self, seed: int) -> int:
        """Return the seed of the data of runs with this seed: the one that is given, or theirs."""
        given: int | None = self.data_options.get("seed")
        return seed if given is None else given

    def list_data_seeds(self) -> tuple[int, ...]:
        """Return the seeds of the data of all runs."""
        return tuple(dict.fromkeys(self.get_data_seed(seed) for seed in self.seeds))

    def fix_data_seed(self, seed: int) -> Self:
        """Return the same with the data of this seed for all runs."""
        return self.model_copy(update={"data_options": self.data_options | {"seed": seed}})

    def get_tuned(self, variant: str, data_seed: int) -> dict[str, Any]:
        """Return what was chosen for a variant by validation clients of the data of this seed."""
        by_seed = self.tuned.get(variant)
        if by_seed is None:
            return {}
        require(
            str(data_seed) in by_seed,
            f"tuned: {variant} was tuned on the data of seed {', '.join(by_seed)}, but not of seed "
            f"{data_seed}; leave that seed out, or run `fedtailor tune` with it too.",
        )
        return by_seed[str(data_seed)]

    def add_tuned(self, tuned: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> Self:
        """Return the same with values that were chosen.

        Args:
            tuned: The values by variant, seed of the data and name. Those that were given for the
                same variant are replaced.
        """
        hparams = dict(self.hparams)
        all_tuned = dict(self.tuned)
        for variant, by_seed in tuned.items():
            names = {name for values in by_seed.values() for name in values}
            hparams[variant] = _drop_keys(hparams.get(variant, {}), names)
            all_tuned[variant] = {
                str(seed): {**all_tuned.get(variant, {}).get(str(seed), {}), **values}
                for seed, values in by_seed.items()
            }
        return self.model_copy(update={"hparams": hparams, "tuned": all_tuned})

    def collect_hparams(
        self, variant: str, chosen: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Return the hyper-parameters of a variant.

        Those for all methods are overridden by those for the method, these by those that were
        `chosen` for the variant, and these by those that are given for the variant.
        """
        valid = list_hparam_names(variant)
        for_all = {
            key: value
            for key, value in self.hparams.items()
            if not isinstance(value, dict) and key in valid
        }
        for_method = self.hparams.get(parse_method(variant), {})
        for_variant = self.hparams.get(variant, {})
        return {**for_all, **for_method, **chosen, **for_variant}


def _drop_keys(table: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}


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
