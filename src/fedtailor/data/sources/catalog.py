"""Entries of the catalog: where a known data set is published, how it is read, what it contains."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fedtailor.data.reader_blocks import Block
from fedtailor.data.store import DatasetAttributes

READER_VERSION = "2"
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

    expected_files: str  # its files in words, for messages
    read: Callable[[Path], Iterator[Block]]  # from a file or a folder
    attributes: DatasetAttributes
    remotes: tuple[Remote, ...] = ()  # without any it cannot be downloaded, only added from files
    defaults: Mapping[str, Any] = MappingProxyType({})  # of options, where they differ from others


def make_image_attributes(
    about: str, labels: Sequence[str], coarse: Sequence[int] = (), is_dark: bool = False
) -> DatasetAttributes:
    """Return the attributes of a data set of images of bytes.

    Args:
        about: Description of the data set in one line.
        labels: Name of each class.
        coarse: Coarse label of each class; none: there are none, or they are a column.
        is_dark: Whether the images are dark on white.
    """
    return DatasetAttributes(
        classes=len(labels),
        scale=1 / 255,
        labels=tuple(labels),
        coarse=tuple(coarse),
        is_dark=is_dark,
        about=about,
    )
