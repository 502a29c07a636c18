"""Entries of the catalog: where a known data set is published, how it is read, what it contains."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fedtailor.data.reader_blocks import Block

READER_VERSION = "1"
"""Version of the blocks that readers make; stores of other versions have to be built again."""

BUILT_IN = ("digits", "synthetic")
"""Names of the data sets that come with the library and need no files."""


class Remote(NamedTuple):
    """A published file, and its checksum as `md5:...` or `sha256:...`."""

    url: str
    checksum: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


class CatalogEntry(NamedTuple):
    """A known data set."""

    about: str  # one line that describes it
    expected_files: str  # its files in words, for messages
    read: Callable[[Path], Iterator[Block]]  # from a file or a folder
    attributes: dict[str, Any]  # see `make_image_attributes` and `make_text_attributes`
    remotes: tuple[Remote, ...] = ()  # without any it cannot be downloaded, only added from files
    defaults: Mapping[str, Any] = MappingProxyType({})  # of options, where they differ from others


def make_image_attributes(
    classes: int, labels: str | list[str], dark: bool = False, **more: Any
) -> dict[str, Any]:
    """Return the attributes of a data set of images of bytes.

    Args:
        classes: Number of classes.
        labels: Name of each class.
        dark: Whether the images are dark on white.
        more: Further attributes, like "coarse" with the coarse label of each class.
    """
    return {"classes": classes, "scale": 1 / 255, "labels": list(labels), "dark": dark, **more}


def make_text_attributes(classes: int, unscored_tokens: list[int]) -> dict[str, Any]:
    """Return the attributes of a data set of texts, whose targets are ids of tokens.

    Id 0 is padding and counts for nothing. Models learn to predict `unscored_tokens`, but are not
    evaluated on them.
    """
    return {"classes": classes, "tokens": True, "padding": [0], "uncounted": unscored_tokens}
