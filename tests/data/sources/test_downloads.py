"""Downloading, from a server on this machine: checked, kept, not done twice, and told in a sentence
if it fails.
"""

import gc
import hashlib
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import set_files as write
from divided import images_of, saved
from fedtailor.data import add, list_installed
from fedtailor.data.sources import CATALOG, CatalogEntry, Remote, open_dataset
from fedtailor.errors import InputError

pytest_plugins = ["places"]

pytest.importorskip("pooch")


class Published:
    """Files that a server on this machine hands out, and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked, self.port = folder, list[str](), 0

    def remote(self, name: str, checksum: str = "") -> Remote:
        right = hashlib.sha256((self.folder / name).read_bytes()).hexdigest()
        return Remote(f"http://127.0.0.1:{self.port}/{name}", f"sha256:{checksum or right}")


class Handler(SimpleHTTPRequestHandler):
    def __init__(self, published: Published, *rest: Any) -> None:
        self.published = published
        super().__init__(*rest, directory=str(published.folder))

    def do_GET(self) -> None:
        self.published.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Published]:
    """A server that runs while a test does."""
    monkeypatch.setenv("NO_PROXY", "*")
    (tmp_path / "www").mkdir()
    made = Published(tmp_path / "www")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, made)) as server:
        made.port = server.server_port
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        server.shutdown()
        thread.join()


def publish(
    monkeypatch: pytest.MonkeyPatch, name: str, *remotes: Remote, like: str = ""
) -> CatalogEntry:
    known = CATALOG[like or name]._replace(remotes=remotes)
    monkeypatch.setitem(CATALOG, name, known)
    return known


def files_in(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


def test_what_is_published_is_downloaded_once(
    published: Published, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(write.cifar10(binary=False)(tmp_path), published.folder / "cifar.tar.gz")
    publish(monkeypatch, "cifar10", published.remote("cifar.tar.gz"))
    first = add("cifar10")
    assert first.num_rows == 12
    assert sorted(path.name for path in place.iterdir()) == ["downloads", "stores"]
    assert files_in(place / "downloads") == ["cifar10/cifar.tar.gz"]
    assert add("cifar10", replace=True).content_hash == first.content_hash
    assert published.asked == ["/cifar.tar.gz"]
    assert [file.name for file in first.provenance.files] == ["cifar.tar.gz"]
    (place / "downloads" / "cifar10" / "cifar.tar.gz").write_bytes(b"damaged")
    assert add("cifar10", replace=True).content_hash == first.content_hash
    assert len(published.asked) == 2


def test_several_files_are_read_together(
    published: Published, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write.idx(("train", "t10k"))(published.folder)
    names = sorted(path.name for path in published.folder.iterdir())
    publish(monkeypatch, "mnist", *(published.remote(name) for name in names))
    assert add("mnist").num_rows == 40
    assert published.asked == [f"/{name}" for name in names]
    assert files_in(place / "downloads") == [f"mnist/{name}" for name in names]


def test_archives_are_unpacked_side_by_side(
    published: Published, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for what in ("posts", "words"):
        (tmp_path / what).mkdir()
    write.stackoverflow_h5(tmp_path / "posts")
    (tmp_path / "words" / "stackoverflow.word_count").write_text(write.WORD_COUNTS)
    for what in ("posts", "words"):
        shutil.move(write.packed(tmp_path / what, ".tar.bz2"), published.folder)
    publish(
        monkeypatch,
        "stackoverflow",
        *(published.remote(f"{what}.tar.bz2") for what in ("posts", "words")),
    )
    x = add("stackoverflow").columns["x"]
    assert (x[:, 1:3] == [2, 1]).all()  # "the cat", by the list of words
    assert sorted(path.name for path in place.iterdir()) == ["downloads", "stores"]


def test_sets_that_share_a_file_share_its_download(
    published: Published, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(write.emnist_zip(tmp_path), published.folder)
    remote = published.remote("gzip.zip")
    for variant in ("byclass", "letters", "balanced"):
        publish(monkeypatch, f"emnist-{variant}", remote)
    for variant in ("letters", "balanced"):
        add(f"emnist-{variant}")
    assert published.asked == ["/gzip.zip"]
    assert list_installed() == ["emnist-balanced", "emnist-letters"]


def refused(name: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        add(name, replace=True)
    said = str(caught.value)
    assert said.startswith(f"{name}: ")
    assert said.endswith(
        f"; get {CATALOG[name].expected_files} yourself and run `fedtailor data add {name} --from "
        "PATH`."
    )
    assert "\n" not in said


def test_another_file_than_the_one_that_was_published_is_refused(
    published: Published, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(published.folder / "mnist.npz", images_of("mnist"))
    publish(monkeypatch, "mnist", published.remote("mnist.npz", "0" * 64))
    refused("mnist", r"^mnist: http://127.0.0.1:\d+/mnist.npz could not be downloaded: .*hash")
    assert files_in(place) == []
    publish(monkeypatch, "mnist", published.remote("mnist.npz"))
    assert add("mnist").num_rows == 40


@pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning"
)  # what pooch does with a refusal
def test_a_file_that_is_gone_and_a_server_that_is_down_are_told(
    published: Published, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(published.folder / "mnist.npz", images_of("mnist"))
    remote = published.remote("mnist.npz")
    path.unlink()
    publish(monkeypatch, "mnist", remote)
    refused("mnist", "mnist.npz could not be downloaded: 404")
    gc.collect()
    publish(
        monkeypatch, "mnist", remote._replace(url="http://127.0.0.1:9/mnist.npz")
    )  # where nobody listens
    refused(
        "mnist",
        r"^mnist: http://127.0.0.1:9/mnist.npz could not be downloaded: there is no connection to "
        r"127.0.0.1;",
    )
    assert files_in(place) == []


def test_what_was_added_before_stays_if_the_download_fails(
    published: Published, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("mnist", saved(tmp_path / "mnist.npz", images_of("mnist")))
    publish(monkeypatch, "mnist", Remote("http://127.0.0.1:9/mnist.npz", f"md5:{'0' * 32}"))
    refused("mnist", "could not be downloaded")
    assert open_dataset("mnist").num_rows == 40


@pytest.mark.usefixtures("place")
def test_what_is_published_nowhere_is_told() -> None:
    assert [name for name, known in CATALOG.items() if not known.remotes] == [
        "shakespeare-leaf",
        "stackexchange",
    ]
    for name in ("shakespeare-leaf", "stackexchange"):
        refused(name, "it cannot be downloaded; get ")
