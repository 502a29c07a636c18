"""Small files in the formats in which data sets are published: each function writes some, and says
what to add.
"""

import gzip
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from divided import images_of, saved, writers
from fedtailor.data.examples import Array
from fedtailor.data.sources.text import NUM_WORDS
from published_formats import (
    femnist_user,
    python2_pickle,
    write_cifar10,
    write_hdf5,
    write_idx,
    write_leaf,
    write_stl10,
)

RNG = np.random.default_rng(9)
Write = Callable[[Path], Path]
WORD_COUNTS = "".join(
    f"{word} 9\n" for word in ("cat", "the", *(f"word{number}" for number in range(NUM_WORDS)))
)


def pixels(count: int, *shape: int) -> Array:
    return RNG.integers(0, 256, (count, *shape), np.uint8)


def packed(folder: Path, end: str, inside: str = "") -> Path:
    """An archive of a folder's files, beside it."""
    path = folder.with_name(folder.name + end)
    if end == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for file in folder.iterdir():
                archive.write(file, f"{inside}{file.name}")
        return path
    with tarfile.open(path, "w:gz") if end == ".tar.gz" else tarfile.open(path, "w:bz2") as packing:
        for file in folder.iterdir():
            packing.add(file, f"{inside}{file.name}")
    return path


def idx(prefixes: Iterable[str], end: str = ".gz", label: int = 9) -> Write:
    def write(place: Path) -> Path:
        for prefix, count in zip(prefixes, (30, 10), strict=True):
            write_idx(place, prefix, pixels(count, 28, 28), [label, *[1] * (count - 1)], end)
        return place

    return write


def emnist_zip(place: Path) -> Path:
    folder = place / "gzip"
    folder.mkdir()
    for variant, label in (("letters", 26), ("balanced", 46), ("byclass", 61)):
        idx([f"emnist-{variant}-train", f"emnist-{variant}-test"], label=label)(folder)
    return packed(folder, ".zip", "gzip/")


def npz(name: str) -> Write:
    return lambda place: saved(place / "some.npz", images_of(name, 30, 10))


def cifar10(binary: bool) -> Write:
    def write(place: Path) -> Path:
        write_cifar10(place / "batches", python2_pickle)
        for file in (place / "batches").iterdir():
            if (file.suffix == ".bin") != binary:
                file.unlink()
        return packed(place / "batches", ".tar.gz", "cifar-10/")

    return write


def cifar100(place: Path) -> Path:
    (place / "cifar").mkdir()
    for name, count in (("train", 30), ("test", 10)):
        labels = RNG.integers(0, 20, count).tolist()
        batch = {
            "data": pixels(count, 3072),
            "fine_labels": labels,
            "coarse_labels": [k // 2 for k in labels],
        }
        (place / "cifar" / name).write_bytes(python2_pickle(batch))
    return packed(place / "cifar", ".tar.gz", "cifar-100-python/")


def fed_cifar100(place: Path) -> Path:
    (place / "fed").mkdir()
    for name, count in (("train", 6), ("test", 2)):
        people = {
            str(number): {
                "image": pixels(5, 32, 32, 3),
                "label": np.arange(5),
                "coarse_label": np.arange(5),
            }
            for number in range(count)
        }
        write_hdf5(place / "fed" / f"fed_cifar100_{name}.h5", people)
    return packed(place / "fed", ".tar.bz2")


def stl10(place: Path) -> Path:
    write_stl10(place / "stl", pixels(40, 3, 96, 96), [k % 10 for k in range(40)], 30)
    return packed(place / "stl", ".tar.gz", "stl10_binary/")


def leaf_femnist(place: Path) -> Path:
    for part, count in (("train", 5), ("test", 2)):
        users = {
            name: femnist_user(pixels(count, 28, 28), [*range(60, 62), *range(count - 2)])
            for name in "abcdefgh"
        }
        write_leaf(place, part, "some.json", users)
    return place


def tff_femnist(place: Path) -> Path:
    (place / "fed").mkdir()
    for part, count in (("train", 5), ("test", 2)):
        people = {
            name: {"pixels": RNG.random((count, 28, 28), np.float32), "label": np.arange(count)}
            for name in "abcdefgh"
        }
        write_hdf5(place / "fed" / f"fed_emnist_{part}.h5", people)
    return packed(place / "fed", ".tar.bz2")


def several_femnist(place: Path) -> Path:
    for number, seed in enumerate((1, 2)):
        arrays = writers(4, seed)
        saved(
            place / f"femnist_{number}.npz",
            arrays | {"writer_names": np.array([f"{number}-{k}" for k in range(4)])},
        )
    return place


SPEECHES = [f"Speak, speech number {number}; once more!" for number in range(6)]


def shakespeare_h5(place: Path) -> Path:
    (place / "speeches").mkdir()
    for part in ("train", "test"):
        roles = {
            name: {"snippets": [f"{name} {part} {said}" for said in SPEECHES[:3]]}
            for name in "abcdefgh"
        }
        write_hdf5(place / "speeches" / f"shakespeare_{part}.h5", roles)
    return packed(place / "speeches", ".tar.bz2")


def shakespeare_npz(place: Path) -> Path:
    said = [f"{name}: {' '.join(SPEECHES)}\n" for name in "abcdefgh"]
    offsets = np.append(0, np.cumsum([len(each) for each in said]))
    raw = np.frombuffer("".join(said).encode(), np.uint8)
    names = {"role_names": np.array(list("abcdefgh")), "play_names": np.array(["PLAY"] * 8)}
    return saved(place / "shakespeare_roles.npz", {"text": raw, "role_offsets": offsets, **names})


def leaf_shakespeare(place: Path) -> Path:
    line = 80 * "." + " ".join(SPEECHES)
    users = {
        f"PLAY_{name}": {"x": [name + line[at : at + 79] for at in range(4)], "y": list("abcd")}
        for name in "abcdefgh"
    }
    write_leaf(place, "train", "a.json", users)
    return place


def stackoverflow(listed: bool) -> Write:
    def write(place: Path) -> Path:
        stackoverflow_h5(place)
        if listed:
            (place / "stackoverflow.word_count").write_text(WORD_COUNTS)
        return place

    return write


def stackoverflow_h5(place: Path) -> None:
    for part, count in (("train", 4), ("test", 2)):
        users = {
            f"0000{user}": {
                "tokens": [f"the cat word{number} of word{10 + user}" for number in range(count)]
            }
            for user in range(8)
        }
        write_hdf5(place / f"stackoverflow_{part}.h5", users)


def stackexchange(listed: bool) -> Write:
    def write(place: Path) -> Path:
        posts = [
            f"The cat sat on word{user}. The word{user} of word{10 + number}!"
            for user in range(8)
            for number in range(3)
        ]
        if listed:
            (place / "stackexchange_vocab.txt.gz").write_bytes(gzip.compress(WORD_COUNTS.encode()))
        arrays = {
            "text": np.frombuffer("".join(posts).encode(), np.uint8),
            "doc_offsets": np.append(0, np.cumsum([len(post) for post in posts])),
            "doc_user": np.repeat(np.arange(8), 3),
            "user_site": np.array(["cats"] * 8),
            "user_id": np.arange(8),
        }
        path = saved(place / "stackexchange_users.npz", arrays)
        return place if listed else path

    return write
