"""Read specifications from TOML files and KEY=VALUE arguments, and write them as TOML."""

import copy
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError

from fedtailor import methods
from fedtailor.errors import InputError, require, suggest_name
from fedtailor.storage.manifest import read_listed
from fedtailor.training.config import (
    CommonConfig,
    ComparisonConfig,
    RunConfig,
    list_hparam_names,
    parse_method,
)

NONE = "none"
"""None as the value of a hyper-parameter, which TOML lacks; other unset keys are left out."""
_Config = TypeVar("_Config", bound=CommonConfig)
_HPARAM_TABLES = ("hparams", "tune", "tuned")
"""Tables that hold hyper-parameters."""
_ARGUMENT_HINTS = {
    "data_options": "write data.KEY=VALUE for an option of the data set.",
    "hparams": "write KEY=VALUE for a hyper-parameter, or METHOD.KEY=VALUE for that of one method.",
    "tune": "write tune.KEY=VALUES or tune.METHOD.KEY=VALUES.",
}
"""What to write in arguments for tables of a file."""
_COPY_REMEDY = "to try other values, put it back, and change a copy in another folder."
"""End of a message about a file that `fedtailor tune` wrote and that has been edited."""
MAX_TOML_BYTES = 1 << 24
MAX_TOML_DEPTH = 50
"""Limits of a file, far above any specification."""


def read_run_config(args: list[str], base: dict[str, Any] | None = None) -> RunConfig:
    """Return the specification of one run from the arguments of a command.

    Args:
        args: Names of TOML files, and KEY=VALUE.
        base: Values that the arguments override.
    """
    for arg in args:
        require("=" in arg or arg.endswith(".toml"), f"'{arg}' is neither FILE.toml nor KEY=VALUE.")
    values = parse_overrides(args, RunConfig, base)
    method = _get_method(values)
    hparams = dict(values["hparams"])
    method_hparams = hparams.pop(method, {})
    for key, value in hparams.items():
        require(
            not isinstance(value, dict),
            f"'{key}' is not the method of this run, which is {method}.",
        )
    config = validate_config(RunConfig, values | {"hparams": hparams | method_hparams})
    return config.resolve()


def read_comparison(args: list[str], base: dict[str, Any] | None = None) -> ComparisonConfig:
    """Return the specification of a comparison from arguments; those without `=` are methods.

    Args:
        args: The arguments of a command.
        base: The content of a file that was read already, which the arguments override.
    """
    variants = tuple(arg for arg in args if "=" not in arg and not arg.endswith(".toml"))
    values = parse_overrides([arg for arg in args if arg not in variants], ComparisonConfig, base)
    if variants:
        values["methods"] = variants
    comparison = validate_config(ComparisonConfig, values)
    comparison.check_distinct()
    _check_tune_table(comparison.tune)
    all_variants = comparison.add_baselines().methods
    valid_names = {name for method in all_variants for name in list_hparam_names(method)}
    for key, value in comparison.hparams.items():
        if isinstance(value, dict):
            methods.load_method_module(parse_method(key))
            # A file may have hyper-parameters of methods that are not compared, a command may not.
            is_listed = key in (*all_variants, *map(parse_method, all_variants))
            is_on_command_line = any(arg.startswith(f"{key}.") for arg in args)
            require(
                is_listed or not is_on_command_line,
                f"'{key}' is not among the methods {', '.join(comparison.methods)}.",
            )
        else:
            if key not in valid_names:
                raise InputError(_describe_unknown_key(key, valid_names, ComparisonConfig))
    return comparison


def format_toml(config: CommonConfig) -> str:
    """Return a specification as TOML with every default; comments name keys without a value."""
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
        return {key: _replace(inner, old, new) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace(item, old, new) for item in value]
    return new if value == old else value


def _drop_none(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _drop_none(inner) for key, inner in value.items() if inner is not None}


def parse_overrides(
    args: list[str], config_class: type[CommonConfig], base: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return values of fields, data options and hyper-parameters; arguments override files.

    Args:
        args: Names of TOML files, and KEY=VALUE.
        config_class: The specification that the values are for.
        base: The content of a file that was read already.
    """
    values = copy.deepcopy(base or {})
    files = [arg for arg in args if arg.endswith(".toml") and "=" not in arg]
    require(len(files) <= 1, f"One file is expected, got {', '.join(files)}.")
    for file in files:
        values = read_toml(Path(file))
    _check_tables(values, config_class)
    for arg in args:
        key, equals, text = arg.partition("=")
        if equals:
            _apply_override(values, key, text, config_class)
    return values


def _list_tables(config_class: type[CommonConfig]) -> tuple[str, ...]:
    if config_class is ComparisonConfig:
        return ("data_options", "hparams", "tune", "tuned")
    return ("data_options", "hparams")


def _check_tables(values: dict[str, Any], config_class: type[CommonConfig]) -> None:
    """Add the tables that are missing, refuse what is no table, and replace "none" by None."""
    for table in _list_tables(config_class):
        values.setdefault(table, {})
        require(
            isinstance(values[table], dict), f"{table}: must be a table, got {values[table]!r}."
        )
        if table in _HPARAM_TABLES:
            values[table] = _replace(values[table], NONE, None)
    for method in methods.NAMES:
        table = values["hparams"].get(method, {})
        require(isinstance(table, dict), f"hparams.{method}: must be a table, got {table!r}.")


def _apply_override(
    values: dict[str, Any], key: str, text: str, config_class: type[CommonConfig]
) -> None:
    """Put the value of a KEY=VALUE argument where it belongs."""
    prefix, dot, inner_key = key.rpartition(".")
    if prefix == "data":
        values["data_options"][inner_key] = parse_value(text)
    elif prefix.partition(".")[0] == "tune" and config_class is ComparisonConfig:
        method = prefix.partition(".")[2]
        space = _get_table(values["tune"], method, "tune.") if method else values["tune"]
        space[inner_key] = text if ".." in text else _parse_list(text)
    elif dot:
        require(
            prefix not in _ARGUMENT_HINTS, f"'{key}' is no argument; {_ARGUMENT_HINTS.get(prefix)}"
        )
        methods.load_method_module(parse_method(prefix))
        _get_table(values["hparams"], prefix)[inner_key] = parse_value(text)
    elif _is_field(key, config_class):
        is_list = key in ("hidden", "methods", "seeds", "tuned")
        values[key] = _parse_list(text) if is_list else parse_value(text, key=key)
    else:
        _check_hparam_key(key, values, config_class)
        values["hparams"][key] = parse_value(text)


def _get_table(tables: dict[str, Any], key: str, prefix: str = "") -> dict[str, Any]:
    """Return a table in another one, new and empty if it is not there."""
    table: dict[str, Any] = tables.setdefault(key, {})
    require(isinstance(table, dict), f"{prefix}{key}: must be a table, got {table!r}.")
    return table


def _check_tune_table(tune: dict[str, Any]) -> None:
    """Raise an InputError for a name in `tune` that is no hyper-parameter and no method."""
    names = _list_all_hparam_names() if tune else set[str]()
    for key, values in tune.items():
        if isinstance(values, dict):
            methods.load_method_module(parse_method(key))
        else:
            require(
                key in names,
                f"tune: there is no hyper-parameter '{key}'; {suggest_name(key, sorted(names))}",
            )


def _is_field(key: str, config_class: type[CommonConfig]) -> bool:
    return key in config_class.model_fields and key not in _list_tables(config_class)


def _parse_list(text: str) -> list[Any]:
    return [parse_value(part) for part in text.split(",") if part]


def _check_hparam_key(key: str, values: dict[str, Any], config_class: type[CommonConfig]) -> None:
    """Raise an error for a key that is neither a field nor a hyper-parameter."""
    if config_class is RunConfig:
        valid_names = set(list_hparam_names(_get_method(values)))
    else:
        valid_names = _list_all_hparam_names()
    if key not in valid_names:
        raise InputError(_describe_unknown_key(key, valid_names, config_class))


def _get_method(values: dict[str, Any]) -> str:
    """Return the method of a run, or the default one."""
    method = values.get("method", _get_default(RunConfig, "method"))
    require(isinstance(method, str), f"method: must be a name, got {method!r}.")
    return str(method)


def _describe_unknown_key(
    key: str, hparam_names: Iterable[str], config_class: type[CommonConfig]
) -> str:
    """Return a sentence on a key that a command does not have.

    Args:
        key: The key.
        hparam_names: Hyper-parameters of the methods of the command.
        config_class: The specification that the command reads.
    """
    if key in _ARGUMENT_HINTS:
        return f"'{key}' is no argument; {_ARGUMENT_HINTS[key]}"
    keys = set(config_class.model_fields) - set(_list_tables(config_class))
    has_counterpart = f"{key}s" in keys or key.removesuffix("s") in keys
    is_run = config_class is RunConfig
    other_class = ComparisonConfig if is_run else RunConfig
    if key in other_class.model_fields and not has_counterpart:
        commands = "`compare` and `tune`" if is_run else "`run`"
        return f"There is no key '{key}'; it is one of {commands}."
    owners = [method for method in methods.NAMES if key in list_hparam_names(method)]
    if owners:
        return f"There is no key '{key}'; it is a hyper-parameter of {', '.join(owners)}."
    return f"There is no key '{key}'; {suggest_name(key, sorted({*hparam_names, *keys}))}"


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    _check_toml_file(path)
    try:
        toml_bytes = read_listed(path, _COPY_REMEDY)
    except OSError as problem:
        raise InputError(f"'{path}' cannot be read: {problem.strerror}.") from None
    try:
        content = tomllib.loads(toml_bytes.decode("utf-8"))
    except ValueError as problem:
        raise InputError(f"'{path}' cannot be read as TOML: {problem}.") from None
    except RecursionError:
        raise InputError(_describe_depth(path)) from None
    _check_depth(path, content)
    return content


def _check_toml_file(path: Path) -> None:
    """Raise an InputError for what would be read for ever, or cannot be read at all."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}'.") from None
    except OSError as problem:
        raise InputError(f"'{path}' cannot be read: {problem.strerror}.") from None
    require(stat.S_ISREG(status.st_mode), f"'{path}' is not a file.")
    require(
        status.st_size <= MAX_TOML_BYTES,
        f"'{path}' has {status.st_size:,} bytes, too many for a specification.",
    )


def _check_depth(path: Path, content: Any) -> None:
    """Raise an InputError for tables and lists in each other that recursion could not follow."""
    level = [content]
    for _ in range(MAX_TOML_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        level = inner
    require(not level, _describe_depth(path))


def _describe_depth(path: Path) -> str:
    return f"'{path}' has tables or lists that are nested too deeply for a specification."


def validate_config(config_class: type[_Config], values: dict[str, Any]) -> _Config:
    """Return a specification of these values; raise an InputError for one that is not allowed."""
    try:
        return config_class.model_validate(values)
    except ValidationError as problem:
        first = problem.errors()[0]
        key = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            message = _describe_unknown_key(key, (), config_class)
            if key in _list_all_hparam_names():
                message = f"There is no key '{key}'; put it under [hparams] as {key} = ..."
            raise InputError(message) from None
        raise InputError(f"{key}: {_describe_expected(problem)}, got {first['input']!r}.") from None


def _describe_expected(problem: ValidationError) -> str:
    """Return what the first wrong value should have been: each kind that it may be of."""
    first, *rest = problem.errors()
    message = first["msg"].replace("a valid boolean", "true or false")
    for other in rest:
        is_same_value = other["loc"][0] == first["loc"][0] and other["input"] is first["input"]
        if is_same_value and other["msg"] != first["msg"]:
            message += f", or {other['msg'].removeprefix('Input should be ')}"
    return message[0].lower() + message[1:]


def _list_all_hparam_names() -> set[str]:
    return {option for method in methods.NAMES for option in list_hparam_names(method)}


def _get_default(config_class: type[BaseModel], key: str) -> Any:
    return config_class.model_fields[key].default


def parse_value(text: str, key: str = "") -> Any:
    """Return a number, truth value or None if the text reads as one, else the text.

    Text in double quotes is always text, and so are the values of some keys.
    """
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
