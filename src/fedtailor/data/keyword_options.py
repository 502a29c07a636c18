"""Options that are keyword-only arguments of functions: their defaults, meanings and binding."""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

Result = TypeVar("Result")


def get_keyword_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword-only arguments of a function with their defaults."""
    defaults = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            defaults[parameter.name] = parameter.default
    return defaults


def bind_keywords(
    function: Callable[..., Result], options: Mapping[str, Any]
) -> Callable[..., Result]:
    """Return the function with those of the options bound that are its keyword-only arguments."""
    keywords = {name: options[name] for name in get_keyword_defaults(function)}
    return partial(function, **keywords)


def parse_argument_help(function: Callable[..., Any]) -> dict[str, str]:
    """Return what the section "Args:" of a docstring says of each argument, in one line each."""
    docstring = inspect.getdoc(function) or ""
    section = docstring.partition("\nArgs:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}
