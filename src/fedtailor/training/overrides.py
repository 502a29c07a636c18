"""Configurations from TOML files and `key=value` words."""

import copy
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from fedtailor import methods
from fedtailor.errors import InputError, require, suggest_name
from fedtailor.training.config import (
    CommonConfig,
    ComparisonConfig,
    RunConfig,
    list_hparam_names,
    parse_method,
)

NONE = "none"
"""The word for None among hyper-parameters, as TOML has none; elsewhere a key without a value is left out."""


_HPARAM_TABLES = ("hparams", "tune", "tuned")
"""Tables with values of hyper-parameters."""


def read_run_config(args: list[str]) -> RunConfig:
    """The specification of one run, from the words of a command line."""
    for arg in args:
        require("=" in arg or arg.endswith(".toml"), f"'{arg}' is neither FILE.toml nor KEY=VALUE.")
    values = parse_overrides(args, RunConfig)
    method = values.get("method", _get_default(RunConfig, "method"))
    hparams = dict(values["hparams"])
    own = hparams.pop(method, {})
    for key, value in hparams.items():
        require(
            not isinstance(value, dict),
            f"'{key}' is not the method of this run, which is {method}.",
        )
    config: RunConfig = _validate(RunConfig, values | {"hparams": hparams | own})
    return config.resolve()


def validate_run_config(content: Any, path: Path) -> RunConfig:
    """The specification that a run has written down."""
    try:
        return RunConfig.model_validate(content)
    except ValidationError as problem:
        where = ".".join(map(str, problem.errors()[0]["loc"]))
        raise InputError(
            f"'{path}' is damaged: {where or 'config'} cannot be what was written."
        ) from None


def read_comparison(args: list[str], base: dict[str, Any] | None = None) -> ComparisonConfig:
    """The specification of a comparison; words without `=` are methods. A file's content may be given as the base."""
    variants = tuple(arg for arg in args if "=" not in arg and not arg.endswith(".toml"))
    values = parse_overrides([arg for arg in args if arg not in variants], ComparisonConfig, base)
    if variants:
        values["methods"] = variants
    comparison: ComparisonConfig = _validate(ComparisonConfig, values)
    all_variants = comparison.add_baselines().methods
    known = {option for method in all_variants for option in list_hparam_names(method)}
    for key, value in comparison.hparams.items():
        if isinstance(value, dict):
            methods.load_method_module(
                parse_method(key)
            )  # a file may say more than is asked for, a command may not
            is_listed = key in (*all_variants, *map(parse_method, all_variants))
            is_on_command_line = any(arg.startswith(f"{key}.") for arg in args)
            require(
                is_listed or not is_on_command_line,
                f"'{key}' is not among the methods {', '.join(comparison.methods)}.",
            )
        else:
            require(
                key in known,
                f"There is no key '{key}'; {suggest_name(key, sorted({*known, *ComparisonConfig.model_fields}))}",
            )
    return comparison


def to_toml(config: CommonConfig) -> str:
    """Return a specification as a TOML file with every default; keys without a value are named in comments."""
    values = config.model_dump()
    values |= {
        table: _replace(values[table], None, NONE) for table in _HPARAM_TABLES if table in values
    }
    unset = [f"# {key} is not set\n" for key in _list_unset_keys(values)]
    return "".join([*unset, tomli_w.dumps(_drop_none(values))])


def _list_unset_keys(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the keys of a table, and of tables in it, that have no value."""
    for key, value in table.items():
        if value is None:
            yield prefix + key
        elif isinstance(value, dict):
            yield from _list_unset_keys(value, f"{prefix}{key}.")


def _replace(value: Any, old: Any, new: Any) -> Any:
    """Return the same with another value for one, in tables and lists too."""
    if isinstance(value, dict):
        return {key: _replace(each, old, new) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_replace(each, old, new) for each in value]
    return new if value == old else value


def _drop_none(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _drop_none(each) for key, each in value.items() if each is not None}


def parse_overrides(
    args: list[str], config_class: type[CommonConfig], base: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A file's keys with the words' on top, sorted into fields, data options and hyper-parameters."""
    values = copy.deepcopy(base or {})
    for arg in args:
        if arg.endswith(".toml") and "=" not in arg:
            values = read_toml(Path(arg))
    tables = (
        "data_options",
        "hparams",
        *(("tune", "tuned") if config_class is ComparisonConfig else ()),
    )
    for table in tables:
        values.setdefault(table, {})
        require(
            isinstance(values[table], dict), f"{table}: must be a table, got {values[table]!r}."
        )
        if table in _HPARAM_TABLES:
            values[table] = _replace(values[table], NONE, None)
    for method in methods.NAMES:
        own = values["hparams"].get(method, {})
        require(isinstance(own, dict), f"hparams.{method}: must be a table, got {own!r}.")
    for key, _, text in (arg.partition("=") for arg in args if "=" in arg):
        prefix, dot, inner = key.rpartition(".")
        if prefix == "data":
            values["data_options"][inner] = parse_value(text)
        elif prefix.partition(".")[0] == "tune" and config_class is ComparisonConfig:
            method = prefix.partition(".")[2]
            own = values["tune"].setdefault(method, {}) if method else values["tune"]
            own[inner] = (
                text if ".." in text else [parse_value(part) for part in text.split(",") if part]
            )
        elif dot:
            methods.load_method_module(parse_method(prefix))
            values["hparams"].setdefault(prefix, {})[inner] = parse_value(text)
        elif (
            key in config_class.model_fields
            and key not in tables
            and not _is_local_budget(key, text)
        ):
            is_list = key in ("hidden", "methods", "seeds", "tuned")
            values[key] = (
                [parse_value(part) for part in text.split(",") if part]
                if is_list
                else parse_value(text, key=key)
            )
        else:
            _check_hparam_key(key, values, config_class)
            values["hparams"][key] = parse_value(text)
    return values


def _is_local_budget(key: str, text: str) -> bool:
    """Whether this is not a comparison's budget, which is a word, but the number of epochs that `local` has."""
    return key == "budget" and isinstance(parse_value(text), int)


def _check_hparam_key(key: str, values: dict[str, Any], config_class: type[CommonConfig]) -> None:
    """Refuses a key that is neither a field nor a hyper-parameter of the method or of any method."""
    method_names = (
        [values.get("method", _get_default(RunConfig, "method"))]
        if config_class is RunConfig
        else list(methods.NAMES)
    )
    known = {option for method in method_names for option in list_hparam_names(str(method))}
    if key not in known:
        raise InputError(
            f"There is no key '{key}'; {suggest_name(key, sorted({*known, *config_class.model_fields}))}"
        )


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file, or a sentence."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}'.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as problem:
        raise InputError(f"'{path}' cannot be read as TOML: {problem}.") from None


def _validate(config_class: Any, values: dict[str, Any]) -> Any:
    try:
        return config_class.model_validate(values)
    except ValidationError as problem:
        first = problem.errors()[0]
        key = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            hint = (
                f"put it under [hparams] as {key} = ..."
                if key in _list_all_hparam_names()
                else suggest_name(key, config_class.model_fields)
            )
            raise InputError(f"There is no key '{key}'; {hint}") from None
        raise InputError(f"{key}: {_describe_expected(problem)}, got {first['input']!r}.") from None


def _describe_expected(problem: ValidationError) -> str:
    """What the first wrong value should have been; where it may be of several kinds, each of them."""
    first, *rest = problem.errors()
    same = [
        each["msg"]
        for each in rest
        if each["loc"][0] == first["loc"][0] and each["input"] is first["input"]
    ]
    others = [
        f", or {said.removeprefix('Input should be ')}" for said in same if said != first["msg"]
    ]
    said = first["msg"].replace("a valid boolean", "true or false") + "".join(others)
    return said[0].lower() + said[1:]


def _list_all_hparam_names() -> set[str]:
    return {option for method in methods.NAMES for option in list_hparam_names(method)}


def _get_default(config_class: type[BaseModel], key: str) -> Any:
    return config_class.model_fields[key].default


def parse_value(text: str, key: str = "") -> Any:
    """A number, truth value or None where the text reads as one, else the text, as it always is in double quotes."""
    if key in ("data", "model", "device", "method"):
        return text
    if text[:1] == text[-1:] == '"' and len(text) > 1:
        return text[1:-1]
    if text in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text]
    for number_type in (int, float):
        try:
            return number_type(text)
        except ValueError:
            continue
    return text
