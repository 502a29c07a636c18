"""Downloads of published files: done once, checked by checksum, and resumed if they broke off."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedtailor.data.sources.catalog import Remote

CHUNK_BYTES = 1 << 16

TIMEOUT_SECONDS = 60
"""Seconds to wait for a connection, or for the next byte."""

DownloadCallback = Callable[[str, int, int], None]
"""Called after every chunk with a file's name, its bytes so far and in all (0: unknown)."""


def download(remote: Remote, target_dir: Path, progress: DownloadCallback | None = None) -> Path:
    """Return the path of a published file, downloaded unless it is there already.

    Errors of the network or the disk, and of a checksum that differs, are raised as they are.

    Args:
        remote: Address of the file.
        target_dir: Folder that the file is downloaded to, and looked for in.
        progress: Called while the file is downloaded.
    """
    import pooch

    pooch.get_logger().setLevel("ERROR")
    downloader = _ResumableDownloader(remote.name, target_dir, progress)
    path = pooch.retrieve(
        remote.url, remote.checksum, remote.name, target_dir, downloader=downloader
    )
    return Path(path)


class _ResumableDownloader:
    """A downloader for pooch that keeps what it has if it breaks off, and resumes there."""

    def __init__(self, name: str, target_dir: Path, progress: DownloadCallback | None) -> None:
        self._name = name
        self._part_path = target_dir / f".{name}.part"
        self._progress = progress

    def __call__(self, url: str, output: str, _pooch: Any) -> None:
        """Download to `output`, which pooch checks and moves to its place."""
        import requests

        offset = self._part_path.stat().st_size if self._part_path.exists() else 0
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        try:
            connection = requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS)
        except requests.ConnectionError:
            raise OSError(f"there is no connection to {urlsplit(url).hostname}") from None
        with connection as response:
            # The server has nothing after `offset`: the part is the whole file.
            is_complete = response.status_code == requests.codes.requested_range_not_satisfiable
            if not is_complete:
                response.raise_for_status()
                is_resumed = response.status_code == requests.codes.partial_content
                self._write_response(response, offset if is_resumed else 0)
        self._part_path.replace(output)

    def _write_response(self, response: Any, offset: int) -> None:
        """Write the response's content at `offset` of the part."""
        content_length = response.headers.get("content-length")
        total = 0 if content_length is None else offset + int(content_length)
        num_bytes = offset
        with self._part_path.open("ab" if offset else "wb") as file:
            for chunk in response.iter_content(CHUNK_BYTES):
                num_bytes += file.write(chunk)
                if self._progress is not None:
                    self._progress(self._name, num_bytes, total)
        if num_bytes < total:
            raise OSError(
                f"the connection broke after {num_bytes} of {total} bytes; "
                "the next attempt resumes there"
            )
