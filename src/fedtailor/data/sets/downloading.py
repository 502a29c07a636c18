"""Published files: downloaded once, checked by their checksums, and gone on with where a download broke off."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedtailor.data.sets.known import Remote

PIECE = 1 << 16
PATIENCE = 60  # seconds without a byte

Downloaded = Callable[[str, int, int], None]
"""Told, now and then, a file's name, how many bytes of it are there and how many there will be (0: not known)."""


def download(remote: Remote, place: Path, tell: Downloaded | None = None) -> Path:
    """The file in a folder, downloaded unless it is there; what the network or the disk does wrong is raised."""
    import pooch

    pooch.get_logger().setLevel("ERROR")
    downloader = _Resumed(place / f".{remote.name}.part", tell)
    return Path(pooch.retrieve(remote.url, remote.checksum, remote.name, place, downloader=downloader))


class _Resumed:
    """Downloads into a file of its own, which stays if the connection breaks, and is gone on with the next time."""

    def __init__(self, part: Path, tell: Downloaded | None) -> None:
        self._part, self._tell = part, tell

    def __call__(self, url: str, output: str, _: Any, check_only: bool = False) -> None:
        """Fills the file that pooch asks for, and then checks."""
        import requests

        have = self._part.stat().st_size if self._part.exists() else 0
        asked = {"Range": f"bytes={have}-"} if have else {}
        try:
            answered = requests.get(url, headers=asked, stream=True, timeout=PATIENCE)
        except requests.ConnectionError:
            raise OSError(f"there is no connection to {urlsplit(url).hostname}") from None
        with answered as answer:
            beyond = answer.status_code == requests.codes.requested_range_not_satisfiable
            if not beyond:
                answer.raise_for_status()
                self._take(answer, have if answer.status_code == requests.codes.partial_content else 0)
        self._part.replace(output)

    def _take(self, answer: Any, have: int) -> None:
        total = have + int(answer.headers.get("content-length", -have))
        with self._part.open("ab" if have else "wb") as file:
            for piece in answer.iter_content(PIECE):
                have += file.write(piece)
                if self._tell is not None:
                    self._tell(self._part.name[1:-5], have, total)
        if have < total:
            raise OSError(f"the connection broke off after {have} of {total} bytes; the next try goes on from there")
