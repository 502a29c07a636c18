"""Configurations of a run and of a comparison: typed, with every default visible.

Keys are those of `RunConfig`; `data.KEY` is for the data set; any other key is a hyper-parameter, of every method that
has it, or of one method as `METHOD.KEY`. In a file, `[data_options]` and `[hparams]` are tables, and
`[hparams.fedsim]` is for one method.
A comparison may hold a method several times, told apart by a mark behind an @:
`fedmeta fedmeta@first-order fedmeta@first-order.order=1`. For hyper-parameters "none" is None, here and there.
"""

from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from fedtailor import data as sources
from fedtailor import methods
from fedtailor.errors import require, suggest_name

PositiveInt = Annotated[int, Field(strict=True, ge=1)]


Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]


class CommonConfig(BaseModel):
    """What the runs of a comparison share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: str = "digits"  # a name that `fedtailor data` lists, or an .npz file
    data_options: dict[str, Any] = {}
    model: str = "mlp"  # a name that `fedtailor run --help` lists, or FILE.py:NAME, which makes an nn.Module or a fedtailor Task
    hidden: tuple[PositiveInt, ...] = (64,)  # layers of the mlp or the lstm
    activation: Literal["relu", "elu", "tanh"] = "relu"  # of the mlp
    pretrain: Annotated[int, Field(strict=True, ge=0)] = (
        0  # epochs on the server's data before the first round
    )
    pretrain_lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    pretrain_batch: PositiveInt = 20
    rounds: PositiveInt = 50
    budget: Literal["rounds", "gradients", "bytes"] = (
        "rounds"  # what the methods of a comparison have equally much of
    )
    cohort: PositiveInt = 10  # clients a round
    engine: Literal["vectorized", "sequential", "distributed"] = "vectorized"
    device: str = "cpu"  # cpu, cuda, mps
    precision: Literal["float32", "tf32", "bf16", "float64"] = (
        "float32"  # tf32, bf16: what models calculate in
    )
    chunk: PositiveInt | None = None  # clients stacked at a time; none: as many as fit
    compile: Annotated[bool, Field(strict=True)] | Literal["auto", "training"] = (
        "auto"  # auto: training, if it pays
    )
    threads: PositiveInt | None = None  # of the CPU; none: as torch chooses
    client_state: Literal["ram", "files"] = "ram"  # where clients' memory is while training
    evaluate_every: PositiveInt | None = (
        None  # rounds between two looks at the scores; none: 10 looks
    )
    eval_clients: PositiveInt = 100  # how many clients of a group are looked at then
    final_eval_clients: PositiveInt | None = (
        None  # how many clients of a group are scored in the end; none: everybody
    )
    eval_groups: Literal["all", "validation"] = "all"  # whose scores are worked out at all
    target: Annotated[float, Field(allow_inf_nan=False)] | None = (
        None  # a figure whose first round is to be found
    )
    checkpoint_every: PositiveInt = 10  # rounds between two checkpoints
    log: Literal["none", "tensorboard", "mlflow"] = "none"  # besides the record


class RunConfig(CommonConfig):
    """One run: one method, one seed."""

    method: str = "fedsim"
    label: str = ""  # what the method is called in tables and folders, if not by its name
    hparams: dict[str, Any] = {}
    tuned: tuple[str, ...] = ()  # hyper-parameters whose values validation clients have chosen
    seed: Seed = 0

    def resolve(self) -> Self:
        """The same with every default filled in, and everything checked that can be checked without reading data."""
        hparams = asdict(methods.make_hparams(self.method, **self.hparams))
        for name in self.tuned:
            require(
                name in hparams,
                f"tuned: {self.method} has no hyper-parameter '{name}'; {suggest_name(name, hparams)}",
            )
        options = sources.fill_defaults(self.data, self.data_options)
        evaluate_every = self.evaluate_every or max(1, self.rounds // 10)
        data = str(Path(self.data).resolve()) if self.data.endswith(".npz") else self.data
        file, colon, name = self.model.rpartition(":")
        has_model_file = not colon or (file.endswith(".py") and Path(file).is_file())
        require(has_model_file, f"model: there is no Python file '{file}'.")
        model = f"{Path(file).resolve()}:{name}" if colon else self.model
        resolved = {"data": data, "model": model, "hparams": hparams, "data_options": options}
        return self.model_copy(update=resolved | {"evaluate_every": evaluate_every})


BASELINES = ("local", "fedavg")
"""What every table has; fedavg's row after personalizing is FedAvg with fine-tuning."""


class ComparisonConfig(CommonConfig):
    """Several methods and seeds on the same clients, cohorts and first weights."""

    methods: tuple[str, ...] = Field(default=("local", "fedavg", "fedprox", "fedsim"), min_length=1)
    baselines: Annotated[bool, Field(strict=True)] = (
        True  # whether commands add local and fedavg where they are missing
    )
    seeds: tuple[Seed, ...] = Field(default=(0, 1, 2), min_length=1)
    hparams: dict[str, Any] = {}  # for all methods, or {method: {...}} for one
    tuned: dict[
        str, dict[str, Any]
    ] = {}  # what `fedtailor tune` has chosen of these, for each method
    tune: dict[
        str, Any
    ] = {}  # what `fedtailor tune` tries: values of hyper-parameters, or {method: {...}}
    trials: PositiveInt = 4  # how many of these for each method
    tuning_seed: Seed = 100  # of these

    def make_run_configs(self) -> list[RunConfig]:
        """The runs, resolved."""
        return [
            self.make_run_config(variant, seed) for variant in self.methods for seed in self.seeds
        ]

    def make_run_config(self, variant: str, seed: int, **overrides: Any) -> RunConfig:
        """One of the runs, resolved, with some hyper-parameters or other keys as they are given here."""
        hparams = self.collect_hparams(variant) | overrides.pop("hparams", {})
        own = {
            "method": parse_method(variant),
            "label": variant if "@" in variant else "",
            "seed": seed,
        }
        tuned = tuple(
            key for key, value in self.tuned.get(variant, {}).items() if hparams.get(key) == value
        )
        return RunConfig(
            **self.get_common_values() | own | {"hparams": hparams, "tuned": tuned} | overrides
        ).resolve()

    def resolve(self) -> Self:
        """Return the same with every default filled in, each method's hyper-parameters in a table of its own."""
        configs = {
            variant: self.make_run_config(variant, self.seeds[0]) for variant in self.methods
        }
        shared = next(iter(configs.values())).model_dump(include=set(CommonConfig.model_fields))
        return self.model_copy(
            update=shared
            | {"hparams": {variant: config.hparams for variant, config in configs.items()}}
        )

    def add_baselines(self) -> Self:
        """The same with the methods that every table has, in front, where they are missing and not declined."""
        present = [parse_method(variant) for variant in self.methods]
        missing = tuple(name for name in BASELINES if name not in present) if self.baselines else ()
        return self.model_copy(update={"methods": (*missing, *self.methods)})

    def get_common_values(self) -> dict[str, Any]:
        """What all runs have in common."""
        return self.model_dump(include=set(CommonConfig.model_fields))

    def collect_hparams(self, variant: str) -> dict[str, Any]:
        """What is meant for all, for the method, and for this one of its kind, the last said being the strongest."""
        valid, method = list_hparam_names(variant), parse_method(variant)
        for_all = {
            key: value
            for key, value in self.hparams.items()
            if not isinstance(value, dict) and key in valid
        }
        own: dict[str, Any] = self.hparams.get(variant, {})
        return {**for_all, **self.hparams.get(method, {}), **own}


def parse_method(variant: str) -> str:
    """The method's name in a word of a comparison: `fedmeta@first-order` is fedmeta."""
    method, at, suffix = variant.partition("@")
    is_plain = all(letter.isalnum() or letter in "-_.+" for letter in suffix)
    require(
        bool(suffix) == bool(at) and is_plain,
        f"'{variant}': behind the @ letters, digits and -_.+ are expected.",
    )
    return method


def list_hparam_names(variant: str) -> list[str]:
    """The hyper-parameters that a method has."""
    return [
        field.name for field in fields(methods.load_method_module(parse_method(variant)).HParams)
    ]
