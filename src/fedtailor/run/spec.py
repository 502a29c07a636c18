"""What a run is: a typed specification, from a TOML file and `key=value` words, with every default visible.

Keys are those of `Spec`; `data.KEY` is for the data set; any other key is a hyper-parameter, of every method that has
it, or of one method as `METHOD.KEY`. In a file, `[data_options]` and `[hyper]` are tables, `[hyper.fedsim]` is for one
method. A comparison may hold a method several times, told apart by a word of the user's own behind an @:
`fedmeta fedmeta@first-order fedmeta@first-order.order=1`. For hyper-parameters "none" is None, here and there.
"""

import copy
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedtailor import data as sources
from fedtailor import methods
from fedtailor.errors import InputError, nearest, require

Whole = Annotated[int, Field(strict=True, ge=1)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
NONE = "none"
"""The word for None among hyper-parameters, as TOML has none; elsewhere a key without a value is left out."""
_OF_HYPER = ("hyper", "tune", "chosen")
"""Tables with values of hyper-parameters."""


class Common(BaseModel):
    """What the runs of a comparison share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: str = "digits"  # a name that `fedtailor data` lists, or an .npz file
    data_options: dict[str, Any] = {}
    model: str = (
        "mlp"  # a name that `fedtailor run --help` lists, or FILE.py:NAME, which makes an nn.Module or a fedtailor Task
    )
    hidden: tuple[Whole, ...] = (64,)  # layers of the mlp or the lstm
    activation: Literal["relu", "elu", "tanh"] = "relu"  # of the mlp
    pretrain: Annotated[int, Field(strict=True, ge=0)] = 0  # epochs on the server's data before the first round
    pretrain_lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    pretrain_batch: Whole = 20
    rounds: Whole = 50
    budget: Literal["rounds", "gradients", "bytes"] = "rounds"  # what the methods of a comparison have equally much of
    cohort: Whole = 10  # clients a round
    engine: Literal["vectorised", "one_by_one", "distributed"] = "vectorised"
    device: str = "cpu"  # cpu, cuda, mps
    precision: Literal["float32", "tf32", "bf16", "float64"] = "float32"  # tf32, bf16: what models calculate in
    chunk: Whole | None = None  # clients stacked at a time; none: as many as fit
    compile: Annotated[bool, Field(strict=True)] | Literal["auto", "training"] = "auto"  # auto: training, if it pays
    threads: Whole | None = None  # of the CPU; none: as torch chooses
    memory: Literal["ram", "files"] = "ram"  # where clients' memory is while training
    evaluate_every: Whole | None = None  # rounds between two looks at the scores; none: 10 looks
    watch: Whole = 100  # how many clients of a group are looked at then
    score: Whole | None = None  # how many clients of a group are scored in the end; none: everybody
    scored: Literal["everybody", "validation"] = "everybody"  # whose scores are worked out at all
    target: Annotated[float, Field(allow_inf_nan=False)] | None = None  # a figure whose first round is to be found
    checkpoint_every: Whole = 10  # rounds between two checkpoints
    log: Literal["none", "tensorboard", "mlflow"] = "none"  # besides the record


class Spec(Common):
    """One run: one method, one seed."""

    method: str = "fedsim"
    label: str = ""  # what the method is called in tables and folders, if not by its name
    hyper: dict[str, Any] = {}
    chosen: tuple[str, ...] = ()  # hyper-parameters whose values validation clients have chosen
    seed: Seed = 0

    def resolved(self) -> Self:
        """The same with every default filled in, and everything checked that can be checked without reading data."""
        hyper = asdict(methods.hyper_of(self.method, **self.hyper))
        for name in self.chosen:
            require(name in hyper, f"chosen: {self.method} has no hyper-parameter '{name}'; {nearest(name, hyper)}")
        options = sources.filled(self.data, self.data_options)
        every = self.evaluate_every or max(1, self.rounds // 10)
        place = str(Path(self.data).resolve()) if self.data.endswith(".npz") else self.data
        file, colon, name = self.model.rpartition(":")
        there = not colon or (file.endswith(".py") and Path(file).is_file())
        require(there, f"model: there is no Python file '{file}'.")
        model = f"{Path(file).resolve()}:{name}" if colon else self.model
        filled = {"data": place, "model": model, "hyper": hyper, "data_options": options}
        return self.model_copy(update=filled | {"evaluate_every": every})


BASELINES = ("local", "fedavg")
"""What every table has; fedavg's row after personalising is FedAvg with fine-tuning."""


class Comparison(Common):
    """Several methods and seeds on the same clients, cohorts and first weights."""

    methods: tuple[str, ...] = Field(default=("local", "fedavg", "fedprox", "fedsim"), min_length=1)
    baselines: Annotated[bool, Field(strict=True)] = (
        True  # whether commands add local and fedavg where they are missing
    )
    seeds: tuple[Seed, ...] = Field(default=(0, 1, 2), min_length=1)
    hyper: dict[str, Any] = {}  # for all methods, or {method: {...}} for one
    chosen: dict[str, dict[str, Any]] = {}  # what `fedtailor tune` has chosen of these, for each method
    tune: dict[str, Any] = {}  # what `fedtailor tune` tries: values of hyper-parameters, or {method: {...}}
    trials: Whole = 4  # how many of these for each method
    tune_seed: Seed = 100  # of these

    def specs(self) -> list[Spec]:
        """The runs, resolved."""
        return [self.spec_of(word, seed) for word in self.methods for seed in self.seeds]

    def spec_of(self, word: str, seed: int, **other: Any) -> Spec:
        """One of the runs, resolved, with some hyper-parameters or other keys as they are given here."""
        hyper = self.hyper_of(word) | other.pop("hyper", {})
        own = {"method": method_in(word), "label": word if "@" in word else "", "seed": seed}
        chosen = tuple(key for key, value in self.chosen.get(word, {}).items() if hyper.get(key) == value)
        return Spec(**self.shared() | own | {"hyper": hyper, "chosen": chosen} | other).resolved()

    def resolved(self) -> Self:
        """Return the same with every default filled in, each method's hyper-parameters in a table of its own."""
        specs = {word: self.spec_of(word, self.seeds[0]) for word in self.methods}
        shared = next(iter(specs.values())).model_dump(include=set(Common.model_fields))
        return self.model_copy(update=shared | {"hyper": {word: spec.hyper for word, spec in specs.items()}})

    def with_baselines(self) -> Self:
        """The same with the methods that every table has, in front, where they are missing and not declined."""
        there = [method_in(word) for word in self.methods]
        missing = tuple(name for name in BASELINES if name not in there) if self.baselines else ()
        return self.model_copy(update={"methods": (*missing, *self.methods)})

    def shared(self) -> dict[str, Any]:
        """What all runs have in common."""
        return self.model_dump(include=set(Common.model_fields))

    def hyper_of(self, word: str) -> dict[str, Any]:
        """What is meant for all, for the method, and for this one of its kind, the last said being the strongest."""
        valid, method = hyper_names(word), method_in(word)
        for_all = {key: value for key, value in self.hyper.items() if not isinstance(value, dict) and key in valid}
        own: dict[str, Any] = self.hyper.get(word, {})
        return {**for_all, **self.hyper.get(method, {}), **own}


def method_in(word: str) -> str:
    """The method's name in a word of a comparison: `fedmeta@first-order` is fedmeta."""
    method, at, mark = word.partition("@")
    plain = all(letter.isalnum() or letter in "-_.+" for letter in mark)
    require(bool(mark) == bool(at) and plain, f"'{word}': behind the @ letters, digits and -_.+ are expected.")
    return method


def hyper_names(word: str) -> list[str]:
    """The hyper-parameters that a method has."""
    return [field.name for field in fields(methods.file_of(method_in(word)).Hyper)]


def read_spec(words: list[str]) -> Spec:
    """The specification of one run, from the words of a command line."""
    for word in words:
        require("=" in word or word.endswith(".toml"), f"'{word}' is neither FILE.toml nor KEY=VALUE.")
    given = gathered(words, Spec)
    method = given.get("method", _default(Spec, "method"))
    hyper = dict(given["hyper"])
    own = hyper.pop(method, {})
    for key, value in hyper.items():
        require(not isinstance(value, dict), f"'{key}' is not the method of this run, which is {method}.")
    spec: Spec = _validated(Spec, given | {"hyper": hyper | own})
    return spec.resolved()


def checked_spec(content: Any, path: Path) -> Spec:
    """The specification that a run has written down."""
    try:
        return Spec.model_validate(content)
    except ValidationError as problem:
        where = ".".join(map(str, problem.errors()[0]["loc"]))
        raise InputError(f"'{path}' is damaged: {where or 'spec'} cannot be what was written.") from None


def read_comparison(words: list[str], base: dict[str, Any] | None = None) -> Comparison:
    """The specification of a comparison; words without `=` are methods. A file's content may be given as the base."""
    names = tuple(word for word in words if "=" not in word and not word.endswith(".toml"))
    given = gathered([word for word in words if word not in names], Comparison, base)
    if names:
        given["methods"] = names
    spec: Comparison = _validated(Comparison, given)
    every = spec.with_baselines().methods
    known = {option for method in every for option in hyper_names(method)}
    for key, value in spec.hyper.items():
        if isinstance(value, dict):
            methods.file_of(method_in(key))  # a file may say more than is asked for, a command may not
            among = key in (*every, *map(method_in, every))
            said = any(word.startswith(f"{key}.") for word in words)
            require(among or not said, f"'{key}' is not among the methods {', '.join(spec.methods)}.")
        else:
            require(
                key in known, f"There is no key '{key}'; {nearest(key, sorted({*known, *Comparison.model_fields}))}"
            )
    return spec


def shown(spec: Common) -> str:
    """Return a specification as a TOML file with every default; keys without a value are named in comments."""
    plain = spec.model_dump()
    plain |= {table: _replace(plain[table], None, NONE) for table in _OF_HYPER if table in plain}
    unset = [f"# {key} is not set\n" for key in _unset(plain)]
    return "".join([*unset, tomli_w.dumps(_without_none(plain))])


def _unset(table: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """Yield the keys of a table, and of tables in it, that have no value."""
    for key, value in table.items():
        if value is None:
            yield place + key
        elif isinstance(value, dict):
            yield from _unset(value, f"{place}{key}.")


def _replace(value: Any, old: Any, new: Any) -> Any:
    """Return the same with another value for one, in tables and lists too."""
    if isinstance(value, dict):
        return {key: _replace(each, old, new) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_replace(each, old, new) for each in value]
    return new if value == old else value


def _without_none(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_none(each) for key, each in value.items() if each is not None}


def gathered(words: list[str], kind: type[Common], base: dict[str, Any] | None = None) -> dict[str, Any]:
    """A file's keys with the words' on top, sorted into fields, data options and hyper-parameters."""
    given = copy.deepcopy(base or {})
    for word in words:
        if word.endswith(".toml") and "=" not in word:
            given = read_toml(Path(word))
    tables = ("data_options", "hyper", *(("tune", "chosen") if kind is Comparison else ()))
    for table in tables:
        given.setdefault(table, {})
        require(isinstance(given[table], dict), f"{table}: must be a table, got {given[table]!r}.")
        if table in _OF_HYPER:
            given[table] = _replace(given[table], NONE, None)
    for method in methods.NAMES:
        own = given["hyper"].get(method, {})
        require(isinstance(own, dict), f"hyper.{method}: must be a table, got {own!r}.")
    for key, _, text in (word.partition("=") for word in words if "=" in word):
        place, dot, inner = key.rpartition(".")
        if place == "data":
            given["data_options"][inner] = value_of(text)
        elif place.partition(".")[0] == "tune" and kind is Comparison:
            method = place.partition(".")[2]
            own = given["tune"].setdefault(method, {}) if method else given["tune"]
            own[inner] = text if ".." in text else [value_of(part) for part in text.split(",") if part]
        elif dot:
            methods.file_of(method_in(place))
            given["hyper"].setdefault(place, {})[inner] = value_of(text)
        elif key in kind.model_fields and key not in tables and not _of_local(key, text):
            several = key in ("hidden", "methods", "seeds", "chosen")
            given[key] = [value_of(part) for part in text.split(",") if part] if several else value_of(text, plain=key)
        else:
            _require_hyper(key, given, kind)
            given["hyper"][key] = value_of(text)
    return given


def _of_local(key: str, text: str) -> bool:
    """Whether this is not a comparison's budget, which is a word, but the number of epochs that `local` has."""
    return key == "budget" and isinstance(value_of(text), int)


def _require_hyper(key: str, given: dict[str, Any], kind: type[Common]) -> None:
    """Refuses a key that is neither a field nor a hyper-parameter of the method or of any method."""
    chosen = [given.get("method", _default(Spec, "method"))] if kind is Spec else list(methods.NAMES)
    known = {option for method in chosen for option in hyper_names(str(method))}
    if key not in known:
        raise InputError(f"There is no key '{key}'; {nearest(key, sorted({*known, *kind.model_fields}))}")


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file, or a sentence."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}'.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as problem:
        raise InputError(f"'{path}' cannot be read as TOML: {problem}.") from None


def _validated(kind: Any, given: dict[str, Any]) -> Any:
    try:
        return kind.model_validate(given)
    except ValidationError as problem:
        first = problem.errors()[0]
        key = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            hint = f"put it under [hyper] as {key} = ..." if key in _all_hyper() else nearest(key, kind.model_fields)
            raise InputError(f"There is no key '{key}'; {hint}") from None
        raise InputError(f"{key}: {_wanted(problem)}, got {first['input']!r}.") from None


def _wanted(problem: ValidationError) -> str:
    """What the first wrong value should have been; where it may be of several kinds, each of them."""
    first, *rest = problem.errors()
    same = [each["msg"] for each in rest if each["loc"][0] == first["loc"][0] and each["input"] is first["input"]]
    others = [f", or {said.removeprefix('Input should be ')}" for said in same if said != first["msg"]]
    said = first["msg"].replace("a valid boolean", "true or false") + "".join(others)
    return said[0].lower() + said[1:]


def _all_hyper() -> set[str]:
    return {option for method in methods.NAMES for option in hyper_names(method)}


def _default(kind: type[BaseModel], key: str) -> Any:
    return kind.model_fields[key].default


def value_of(text: str, plain: str = "") -> Any:
    """A number, truth value or None where the text reads as one, else the text, as it always is in double quotes."""
    if plain in ("data", "model", "device", "method"):
        return text
    if text[:1] == text[-1:] == '"' and len(text) > 1:
        return text[1:-1]
    if text in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
