"""What is known of a data set before it is on this machine: where it comes from, how its files are read, what it is."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fedtailor.data.reader_blocks import Block

READER_VERSION = "1"
"""Of what readers make of files: a store built by another version has to be built again."""

BUILT_IN = ("digits", "synthetic")
"""The names of data sets that come with the library, and need no files."""


class Remote(NamedTuple):
    """A file to be downloaded, and its checksum as `md5:...` or `sha256:...`."""

    url: str
    checksum: str

    @property
    def name(self) -> str:
        """What the file is called."""
        return self.url.rpartition("/")[2]


class CatalogEntry(NamedTuple):
    """A data set that has a name here."""

    about: str
    expected_files: str  # what its files are, in words
    read: Callable[[Path], Iterator[Block]]  # from a file or a folder
    attributes: dict[str, Any]  # classes, scale, tokens, padding, uncounted, labels, dark, coarse
    remotes: tuple[Remote, ...] = ()  # none: it cannot be downloaded, only added from files at hand
    defaults: Mapping[str, Any] = MappingProxyType({})  # of options, where it has its own


def image_attributes(
    classes: int, labels: str | list[str], dark: bool = False, **more: Any
) -> dict[str, Any]:
    """What is said of a set of images of bytes; `dark` of one that is dark on white."""
    return {"classes": classes, "scale": 1 / 255, "labels": list(labels), "dark": dark, **more}


def text_attributes(classes: int, unscored_tokens: list[int]) -> dict[str, Any]:
    """What is said of a set of texts: id 0 pads and counts for nothing, others are learned, but not scored."""
    return {"classes": classes, "tokens": True, "padding": [0], "uncounted": unscored_tokens}
