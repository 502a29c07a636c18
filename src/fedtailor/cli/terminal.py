"""Printing: names, paths and messages are data, which a terminal shows and never obeys."""

import json
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Task, TextColumn
from rich.text import Text

from fedtailor.errors import make_printable


class TerminalConsole(Console):
    """A console that prints strings as they are, also those in tables, titles and captions.

    Brackets are no markup, colons no emoji, and characters that a terminal would obey are escaped;
    where lines shall break or have styles, pass a `Text`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as text, with the options of the parent class."""
        return super().render_str(make_printable(text), **options)

    def print_line(self, text: str) -> None:
        """Print a line that is not broken, so that its paths and commands can be copied."""
        self.print(text, highlight=False, soft_wrap=True)


class PrintableColumn(TextColumn):
    """A column of a progress display whose fields are data."""

    def render(self, task: Task) -> Text:
        """Return the text of the column."""
        return Text(make_printable(self.text_format.format(task=task)))


def print_text(text: str, is_error: bool = False) -> None:
    """Print lines as they are, to stdout or stderr, without a console."""
    lines = [make_printable(line) for line in text.split("\n")]
    print("\n".join(lines), file=sys.stderr if is_error else sys.stdout)


def print_error(text: str) -> None:
    """Print an error to stderr, as one line whatever it contains."""
    print_text(f"fedtailor: {make_printable(text)}", is_error=True)


def print_as_json(content: Any) -> None:
    """Print JSON for programs, in ASCII."""
    text = json.dumps(content, indent=1, allow_nan=False)
    print(text.replace("\x7f", "\\u007f"))  # the only control character that JSON does not escape


def format_path(path: Path) -> str:
    """Return a path as a reader knows it, or quoted for a shell if it cannot be printed."""
    from fedtailor.training.shell_commands import quote_path

    return str(path) if str(path).isprintable() else quote_path(path)


def escape_what_cannot_be_encoded() -> None:
    """Let characters that the encoding of the output lacks be escaped, not raise errors."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
