"""Published files: downloaded once, checked by their checksums, and gone on with where a download broke off."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedtailor.data.sources.catalog import Remote

CHUNK_BYTES = 1 << 16
TIMEOUT_SECONDS = 60  # seconds without a byte

DownloadCallback = Callable[[str, int, int], None]
"""Told, now and then, a file's name, how many bytes of it are there and how many there will be (0: not known)."""


def download(remote: Remote, target_dir: Path, progress: DownloadCallback | None = None) -> Path:
    """The file in a folder, downloaded unless it is there; what the network or the disk does wrong is raised."""
    import pooch

    pooch.get_logger().setLevel("ERROR")
    downloader = _ResumableDownloader(target_dir / f".{remote.name}.part", progress)
    return Path(
        pooch.retrieve(remote.url, remote.checksum, remote.name, target_dir, downloader=downloader)
    )


class _ResumableDownloader:
    """Downloads into a file of its own, which stays if the connection breaks, and is gone on with the next time."""

    def __init__(self, part: Path, progress: DownloadCallback | None) -> None:
        self._part, self._progress = part, progress

    def __call__(self, url: str, output: str, _: Any, check_only: bool = False) -> None:
        """Fills the file that pooch asks for, and then checks."""
        import requests

        have = self._part.stat().st_size if self._part.exists() else 0
        asked = {"Range": f"bytes={have}-"} if have else {}
        try:
            answered = requests.get(url, headers=asked, stream=True, timeout=TIMEOUT_SECONDS)
        except requests.ConnectionError:
            raise OSError(f"there is no connection to {urlsplit(url).hostname}") from None
        with answered as answer:
            beyond = answer.status_code == requests.codes.requested_range_not_satisfiable
            if not beyond:
                answer.raise_for_status()
                self._write_response(
                    answer, have if answer.status_code == requests.codes.partial_content else 0
                )
        self._part.replace(output)

    def _write_response(self, response: Any, offset: int) -> None:
        total = offset + int(response.headers.get("content-length", -offset))
        with self._part.open("ab" if offset else "wb") as file:
            for piece in response.iter_content(CHUNK_BYTES):
                offset += file.write(piece)
                if self._progress is not None:
                    self._progress(self._part.name[1:-5], offset, total)
        if offset < total:
            raise OSError(
                f"the connection broke off after {offset} of {total} bytes; the next try goes on from there"
            )
