"""Help for the options of `load_federated`, made from the options themselves."""

import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from fedtailor.data.keyword_options import get_keyword_defaults, parse_argument_help
from fedtailor.data.partition.options import (
    ALL_PARTITIONERS,
    NATURAL,
    ConditionalOptions,
    GeneralOptions,
    NaturalOptions,
)
from fedtailor.data.server_data import SERVER_SOURCES

LINE_WIDTH = 80
NAME_WIDTH = 21
"""Width of the column of options' names."""


@cache
def format_option_help() -> str:
    """Return lines on every option, on every partition and on every source of server data."""
    lines = ["Options, and which others go with a partition or a source of the server's data:"]
    lines += _format_meanings(_get_field_help(GeneralOptions))
    lines += _format_meanings(_get_field_help(ConditionalOptions))
    lines += ["", "partition="]
    lines += _format_entry(NATURAL, "the data set's own clients", _get_field_help(NaturalOptions))
    for name, assign in ALL_PARTITIONERS.items():
        meanings = parse_argument_help(assign)
        option_help = {option: meanings[option] for option in get_keyword_defaults(assign)}
        lines += _format_entry(name, _summarize(assign), option_help)
    lines += ["", "server_from="]
    for name, source in SERVER_SOURCES.items():
        lines += _format_entry(name, source.description, source.get_option_help())
    return "\n".join(lines)


def _get_field_help(options_class: type[Any]) -> dict[str, str]:
    return {field.name: field.metadata["help"] for field in fields(options_class)}


def _summarize(function: Any) -> str:
    """Return the first line of a docstring, which begins with "Return", as a noun."""
    first_line = (inspect.getdoc(function) or "").splitlines()[0]
    return first_line.removeprefix("Return ").removesuffix(".")


def _format_entry(name: str, description: str, meanings: Mapping[str, str]) -> list[str]:
    """Return the lines of a partition or a source, and of its options below it."""
    return [*_wrap(name, description, 2), *_format_meanings(meanings, indent=4)]


def _format_meanings(meanings: Mapping[str, str], indent: int = 2) -> list[str]:
    lines = []
    for option, meaning in meanings.items():
        # Sections "Args:" are sentences; the first letter stands in the middle of a line here.
        text = meaning[0].lower() + meaning[1:].removesuffix(".")
        lines += _wrap(option, text, indent)
    return lines


def _wrap(name: str, text: str, indent: int) -> list[str]:
    """Return a name and a text in two columns."""
    head = f"{' ' * indent}{name}".ljust(NAME_WIDTH)
    return textwrap.wrap(
        text, LINE_WIDTH, initial_indent=f"{head} ", subsequent_indent=" " * (NAME_WIDTH + 1)
    )
