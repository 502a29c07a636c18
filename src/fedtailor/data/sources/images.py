"""Catalog of image data sets: MNIST and its relatives, CIFAR, STL-10, and FEMNIST by writer."""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path

from fedtailor.data.reader_blocks import Block, drop_duplicates
from fedtailor.data.readers import cifar, idx, leaf, prepared, stl10, tff
from fedtailor.data.sources.catalog import CatalogEntry, Remote, make_image_attributes

DIGITS = "0123456789"
UPPERCASE = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LOWERCASE = "abcdefghijklmnopqrstuvwxyz"
CHARACTERS = DIGITS + UPPERCASE + LOWERCASE

# The lowercase letters that do not look like their capitals; the others are merged with these.
MERGED_CHARACTERS = DIGITS + UPPERCASE + "abdefghnqrt"

FASHION_LABELS = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
]
CIFAR10_LABELS = [
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
]
CIFAR10_VEHICLES = ("airplane", "automobile", "ship", "truck")
STL10_LABELS = [
    "airplane",
    "bird",
    "automobile",
    "cat",
    "deer",
    "dog",
    "horse",
    "monkey",
    "ship",
    "truck",
]
CIFAR100_NAMES = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus "
    "butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch "
    "crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo "
    "keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse "
    "mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy "
    "porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper "
    "snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television "
    "tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)
CIFAR100_LABELS = CIFAR100_NAMES.split()
EMNIST_LABELS = {
    "byclass": CHARACTERS,
    "bymerge": MERGED_CHARACTERS,
    "balanced": MERGED_CHARACTERS,
    "letters": UPPERCASE,  # each with its lowercase letter
    "digits": DIGITS,
    "mnist": DIGITS,
}
IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
IDX_HINT = f"a folder with {', '.join(IDX_FILES)} (or unpacked)"
NPZ_HINT = "or an .npz file with x_train, y_train, x_test, y_test"
MNIST_MD5 = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
FASHION_MD5 = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
EMNIST_ZIP = Remote(
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "md5:58c8d27c78d21e728a6bc7b3cc06412e"
)
TORONTO_URL = "https://www.cs.toronto.edu/~kriz"
TFF_URL = "https://storage.googleapis.com/tff-datasets-public"


def _read_mnist(path: Path) -> Iterator[Block]:
    if path.suffix == ".npz":
        return prepared.read_images(path, (28, 28), 10)
    return idx.mnist(path)


def _read_emnist(variant: str, path: Path) -> Iterator[Block]:
    if path.suffix == ".npz":
        return prepared.read_images(path, (28, 28), idx.VARIANTS[variant].classes)
    return idx.emnist(path, variant)


def _read_cifar10(path: Path) -> Iterator[Block]:
    if path.suffix == ".npz":
        return prepared.read_images(path, (32, 32, 3), 10)
    return cifar.cifar10(path)


def _read_femnist(path: Path) -> Iterator[Block]:
    """Read FEMNIST from any of its files, without the images that a writer has twice."""
    return drop_duplicates(_read_writers(path))


def _read_writers(path: Path) -> Iterator[Block]:
    if path.suffix == ".npz":
        return prepared.femnist(path)
    if (path / "fed_emnist_train.h5").exists():
        return tff.fed_emnist(path)
    npz_paths = sorted(path.glob("femnist*.npz"))
    if npz_paths and not (path / "train").is_dir():
        return chain.from_iterable(map(prepared.femnist, npz_paths))
    return leaf.femnist(path)


def _make_idx_remotes(base: str, checksums: tuple[str, ...]) -> tuple[Remote, ...]:
    return tuple(
        Remote(f"{base}/{name}", f"md5:{md5}")
        for name, md5 in zip(IDX_FILES, checksums, strict=True)
    )


def _make_idx_entry(
    about: str, labels: str | list[str], remotes: tuple[Remote, ...]
) -> CatalogEntry:
    """Return the entry of MNIST, or of a data set with the same files and number of classes."""
    return CatalogEntry(
        expected_files=f"{IDX_HINT}, {NPZ_HINT}",
        read=_read_mnist,
        attributes=make_image_attributes(about, labels),
        remotes=remotes,
        defaults={"partition": "two-labels", "ratio": 50.0, "used": 1.0, "images": 196},
    )


def _make_emnist_entry(variant: str, labels: str) -> CatalogEntry:
    content = "digits" if labels == DIGITS else "characters"
    about = f"EMNIST {variant}: handwritten {content}, 28 x 28"
    return CatalogEntry(
        expected_files=f"gzip.zip, the folder in it, {NPZ_HINT}",
        read=partial(_read_emnist, variant),
        attributes=make_image_attributes(about, labels, _get_character_kinds(labels)),
        remotes=(EMNIST_ZIP,),
        defaults={"partition": "dirichlet", "clients": 100},
    )


def _get_character_kinds(characters: str) -> list[int]:
    """Return the coarse label of each character: 0 digits, 1 uppercase and 2 lowercase letters."""
    kinds = dict.fromkeys(DIGITS, 0) | dict.fromkeys(UPPERCASE, 1) | dict.fromkeys(LOWERCASE, 2)
    return [kinds[character] for character in characters]


IMAGE_SETS: dict[str, CatalogEntry] = {
    "mnist": _make_idx_entry(
        "MNIST: 70,000 handwritten digits, 28 x 28",
        DIGITS,
        _make_idx_remotes("https://ossci-datasets.s3.amazonaws.com/mnist", MNIST_MD5),
    ),
    "fashion-mnist": _make_idx_entry(
        "Fashion-MNIST: 70,000 articles of clothing, 28 x 28",
        FASHION_LABELS,
        _make_idx_remotes(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", FASHION_MD5
        ),
    ),
    **{
        f"emnist-{variant}": _make_emnist_entry(variant, labels)
        for variant, labels in EMNIST_LABELS.items()
    },
    "cifar10": CatalogEntry(
        expected_files=(
            f"cifar-10-python.tar.gz or cifar-10-binary.tar.gz, the folder in it, {NPZ_HINT}"
        ),
        read=_read_cifar10,
        attributes=make_image_attributes(
            "CIFAR-10: 60,000 color photographs of 10 kinds, 32 x 32",
            CIFAR10_LABELS,
            coarse=[int(name not in CIFAR10_VEHICLES) for name in CIFAR10_LABELS],
        ),
        remotes=(
            Remote(f"{TORONTO_URL}/cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a"),
        ),
        defaults={"partition": "two-labels", "ratio": 2.5, "used": 0.875, "images": 68},
    ),
    "cifar100": CatalogEntry(
        expected_files="cifar-100-python.tar.gz or cifar-100-binary.tar.gz, or the folder in it",
        read=cifar.cifar100,
        attributes=make_image_attributes(
            "CIFAR-100: 60,000 color photographs of 100 kinds in 20 groups, 32 x 32",
            CIFAR100_LABELS,
        ),
        remotes=(
            Remote(
                f"{TORONTO_URL}/cifar-100-python.tar.gz", "md5:eb9058c3a382ffc7106e4002c42a8d85"
            ),
        ),
        defaults={"partition": "pachinko", "clients": 500},
    ),
    "fed-cifar100": CatalogEntry(
        expected_files=(
            "fed_cifar100.tar.bz2, "
            "or the folder with fed_cifar100_train.h5 and fed_cifar100_test.h5"
        ),
        read=tff.fed_cifar100,
        attributes=make_image_attributes(
            "CIFAR-100 as TensorFlow Federated divides it: 500 clients that train, 100 unseen ones",
            CIFAR100_LABELS,
        ),
        remotes=(
            Remote(
                f"{TFF_URL}/fed_cifar100.tar.bz2",
                "sha256:e8575e22c038ecef1ce6c7d492d7abee7da13b1e1ba9b70a7fc18531ba7590de",
            ),
        ),
        defaults={"partition": "natural", "split": "own"},
    ),
    "stl10": CatalogEntry(
        expected_files="stl10_binary.tar.gz, or the folder in it",
        read=stl10.stl10,
        attributes=make_image_attributes(
            "STL-10: 13,000 color photographs of 10 kinds, 96 x 96", STL10_LABELS
        ),
        remotes=(
            Remote(
                "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
                "md5:91f7769df0f17e558f3565bffb0c7dfb",
            ),
        ),
        defaults={"partition": "two-labels", "ratio": 2.5, "least": 10},
    ),
    "femnist": CatalogEntry(
        expected_files=(
            "LEAF's folder with train/ and test/, fed_emnist.tar.bz2 or its folder, "
            "or femnist*.npz files (or their folder)"
        ),
        read=_read_femnist,
        attributes=make_image_attributes(
            "FEMNIST: handwritten characters by writer, 28 x 28, dark on white",
            CHARACTERS,
            _get_character_kinds(CHARACTERS),
            is_dark=True,
        ),
        remotes=(
            Remote(
                f"{TFF_URL}/fed_emnist.tar.bz2",
                "sha256:fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
            ),
        ),
        defaults={
            "partition": "natural",
            "split": "own",
            "least": 2,
            "server_from": "whole-clients",
        },
    ),
}
