"""A download that broke off is gone on with, from a server that can, and begun again with one that
cannot.
"""

import hashlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from fedtailor.data.sources.catalog import Remote
from fedtailor.data.sources.download import CHUNK_BYTES, download

CONTENT = bytes(range(256)) * 9000
CUT = 1_000_000


class Breaking(BaseHTTPRequestHandler):
    """Breaks off the first answer in the middle; later ones begin where they are asked to, if the
    server can.
    """

    asked: list[str]
    can: bool

    def do_GET(self) -> None:
        wanted = self.headers.get("Range", "")
        self.asked.append(wanted)
        begin = int(wanted.removeprefix("bytes=")[:-1]) if wanted and self.can else 0
        if begin >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(CONTENT) - begin))
        self.end_headers()
        self.wfile.write(CONTENT[begin : CUT if len(self.asked) == 1 else None])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[tuple[Remote, list[str]]]:
    monkeypatch.setenv("NO_PROXY", "*")
    Breaking.asked, Breaking.can = [], request.param
    with HTTPServer(("127.0.0.1", 0), Breaking) as made:
        thread = Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        checksum = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
        yield Remote(f"http://127.0.0.1:{made.server_port}/set.bin", checksum), Breaking.asked
        made.shutdown()
        thread.join()


@pytest.mark.parametrize("server", [True, False], indirect=True, ids=["goes on", "begins again"])
def test_what_is_there_is_not_downloaded_again(
    server: tuple[Remote, list[str]], tmp_path: Path
) -> None:
    remote, asked = server
    told: list[tuple[str, int, int]] = []
    with pytest.raises(Exception, match="broke"):
        download(remote, tmp_path)
    there = (tmp_path / ".set.bin.part").read_bytes()
    assert CUT - CHUNK_BYTES <= len(there) <= CUT
    assert CONTENT.startswith(there)
    found = download(remote, tmp_path, lambda *state: told.append(state))
    assert found == tmp_path / "set.bin"
    assert found.read_bytes() == CONTENT
    assert asked == ["", f"bytes={len(there)}-"]
    assert told[-1] == ("set.bin", len(CONTENT), len(CONTENT))
    assert [path.name for path in tmp_path.iterdir()] == ["set.bin"]
    assert download(remote, tmp_path) == found
    assert len(asked) == 2


@pytest.mark.parametrize("server", [True], indirect=True)
def test_a_part_that_is_whole_already_is_only_checked(
    server: tuple[Remote, list[str]], tmp_path: Path
) -> None:
    remote, asked = server
    (tmp_path / ".set.bin.part").write_bytes(CONTENT)
    assert download(remote, tmp_path).read_bytes() == CONTENT
    assert asked == [f"bytes={len(CONTENT)}-"]


@pytest.mark.parametrize("server", [True], indirect=True)
def test_a_part_of_something_else_does_not_stay(
    server: tuple[Remote, list[str]], tmp_path: Path
) -> None:
    remote, asked = server
    asked.append("before")  # so that no answer is broken off
    (tmp_path / ".set.bin.part").write_bytes(b"something else")
    with pytest.raises(ValueError, match="hash"):
        download(remote, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert download(remote, tmp_path).read_bytes() == CONTENT
