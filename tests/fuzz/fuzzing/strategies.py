"""Hypothesis strategies for specifications and for arguments of functions.

Values are plausible ones, those at the edges of what types hold, and text that is not for a
terminal. Most of a specification is benign, so that it gets as far as what is hostile in it.
"""

from dataclasses import fields
from typing import Any, NamedTuple

import tomli_w
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fedtailor import methods
from fedtailor.data import BUILT_IN_SOURCES, get_options
from fedtailor.training.config import ComparisonConfig, RunConfig

# Values

WHOLE_NUMBERS = (0, 1, 2, 3, 5, 7, -1, -2, 100)
HUGE_NUMBERS = (
    10**9,
    2**31 - 1,
    2**31,
    2**32,
    10**12,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    -(2**31),
    -(2**63),
    -(2**63) - 1,
)
REAL_NUMBERS = (0.0, -0.0, 0.1, 0.5, 1.0, 1.5, -0.1, 1e-300, 5e-324, 1e300, 1e39)
STRANGE_NUMBERS = (float("inf"), float("-inf"), float("nan"))
NUMBER_TEXTS = (
    *(str(number) for number in (*WHOLE_NUMBERS, *HUGE_NUMBERS, *REAL_NUMBERS, *STRANGE_NUMBERS)),
    "0x10",
    "1_000",
    "1e400",
    "1" * 5000,
    "٣",
    "½",
    "1,2",
    "0.1..0.3",
    "1..",
)
USUAL_TEXTS = ("0", "1", "2", "3", "0.1", "0.5", "1.0", "true", "false", "none", "1,2", "-1")
PLAIN_TEXTS = ("", " ", "none", "None", "true", "false", "x", "digits", "train", "all", ".", "..")
RAW_TEXTS = (
    "[red]x[/red]",
    "[/]",
    "[bold",
    "[link=file:///x]y[/link]",
    "a\x1b[31mb",
    "a\x1b]0;title\x07b",
    "x\ny",
    "x\ry",
    "x\x00y",
    "x\u202ey",
    "x\x9by",
    "x\u2028y",
    "x\udcffy",
    "é" * 300,
    "a" * 5000,
    "{}",
    "%s",
    "${HOME}",
    "'",
    '"',
    "<script>alert(1)</script>",
    "🙂",
)
ODD_VALUES: tuple[Any, ...] = (None, True, False, [], [1], {}, {"a": 1}, [[1]])


@st.composite
def weighted(draw: st.DrawFn, *choices: tuple[int, SearchStrategy[Any]]) -> Any:
    """Return an example of one of several strategies, chosen by weights; `one_of` has none."""
    chosen = draw(st.integers(0, sum(weight for weight, _ in choices) - 1))
    for weight, strategy in choices:
        if chosen < weight:
            return draw(strategy)
        chosen -= weight
    raise AssertionError("a choice is one of the choices")


def texts() -> SearchStrategy[str]:
    """Return text of all kinds, without slashes, so that no path leaves a case's folder."""
    alphabet = "ab1=.,[]{}'\"\\ \t\n\x1b\x00é@+-_#%"
    return st.one_of(
        st.sampled_from(PLAIN_TEXTS),
        st.sampled_from(RAW_TEXTS),
        st.sampled_from(NUMBER_TEXTS),
        st.text(alphabet, max_size=12),
    )


def numbers() -> SearchStrategy[Any]:
    """Return numbers: usual ones, huge ones, and those that are none."""
    return st.one_of(
        st.sampled_from(WHOLE_NUMBERS),
        st.sampled_from(HUGE_NUMBERS),
        st.sampled_from(REAL_NUMBERS),
        st.sampled_from(STRANGE_NUMBERS),
    )


def values() -> SearchStrategy[Any]:
    """Return values of all kinds that TOML and Python have in common."""
    return weighted((4, numbers()), (2, texts()), (1, st.sampled_from(ODD_VALUES)))


# Specifications


class Specification(NamedTuple):
    """The words of a command, and the content of a file that one of them may name."""

    words: tuple[str, ...]
    file: bytes | None


SPECIFICATION_FILE = "specification.toml"

BENIGN = {
    "method": "fedavg",
    "data.clients": "6",
    "model": "linear",
    "rounds": "1",
    "cohort": "2",
    "compile": "false",
    "engine": "sequential",
    "threads": "1",
    "batch": "200",
    "finetune_epochs": "1",
}
"""Words of a run that takes no time."""

METHODS = (
    "fedavg",
    "fedsim",
    "ditto",
    "apfl",
    "fsl+fedsim",
    "per+scaffold",
    "local",
    "centralized",
)
COMMANDS = ("run",) * 12 + (
    "compare",
    "compare",
    "tune",
    "data show",
    "data show",
    "data",
    "methods",
)

_EASY_VALUES = {
    "engine": ("sequential", "vectorized", "distributed"),
    "precision": ("float32", "tf32", "bf16", "float64"),
    "client_state": ("ram", "files"),
    "activation": ("relu", "elu", "tanh"),
    "hidden": ("4", "4,4", "", ",", "1000000000", "4,1000000000", "9223372036854775808"),
    "threads": ("2", "1000", "20000", "1000000", "9223372036854775808"),
    "epochs": ("1000000000", "1000000000000"),
    "finetune_epochs": ("1000000000", "1000000000000"),
    "lr": ("1e39", "1e300", "nan", "9223372036854775808"),
    "label": RAW_TEXTS,
    "model": ("linear", "mlp", "lenet", "lstm", "FILE.py:NAME", "net.py:", ":", "no.py:Net"),
    "eval_groups": ("all", "validation"),
    "device": ("cpu", "cuda", "mps", "meta", "cpu:7", "xpu"),
    "method": (*METHODS, "fsl+fsl+fedavg", "fedavg+fsl", "+", "fsl+", "fedavg@a"),
    "data": ("digits", "synthetic", "mnist", "no.npz", "specification.toml", "."),
    "budget": ("rounds", "gradients", "bytes", "5"),
    "finetune": ("paper", "0", "1000000000000", "-1"),
    "out": ("a/b", "specification.toml", ".", "", "a" * 300, "out/", "x\x00y", "x\udcffy", "[b]"),
}
"""Words that are worth trying for some keys, besides those for all."""


def _list_hparams(method: str) -> list[str]:
    return [field.name for field in fields(methods.load_method_module(method).HParams)]


def _list_own_keys() -> list[str]:
    """Return the keys that a run of FedAvg on digits has."""
    options = [f"data.{option}" for option in get_options("digits")]
    return [*RunConfig.model_fields, *_list_hparams("fedavg"), *options, "out", "jobs"]


def _list_other_keys() -> list[str]:
    """Return the keys of comparisons, of other methods and of other data sets."""
    options = [f"data.{option}" for option in get_options("synthetic")]
    hparams = [name for method in METHODS for name in _list_hparams(method)]
    return sorted({*ComparisonConfig.model_fields, *hparams, *options})


def keys() -> SearchStrategy[str]:
    """Return keys of specifications, most of which exist."""
    own = st.sampled_from(_list_own_keys())
    return weighted(
        (20, own),
        (2, st.sampled_from(_list_other_keys())),
        (1, own.map(lambda key: f"fedavg.{key}")),
        (1, own.map(lambda key: f"tune.{key}")),
        (1, own.map(lambda key: f"tune.fedavg.{key}")),
        (1, own.map(lambda key: key[:-1])),
        (
            1,
            st.sampled_from(
                ("", ".", "data.", "fedsim.", ".lr", "tune.", "data.a.b", "hparams.lr")
            ),
        ),
        (1, texts()),
    )


@st.composite
def words(draw: st.DrawFn) -> str:
    """Return a word of a command: KEY=VALUE, or now and then any text."""
    if draw(st.integers(0, 30)) == 0:
        return draw(texts())
    key = draw(keys())
    plain_key = key.rpartition(".")[2]
    if plain_key in _EASY_VALUES and draw(st.booleans()):
        return f"{key}={draw(st.sampled_from(_EASY_VALUES[plain_key]))}"
    usual = st.sampled_from(USUAL_TEXTS)
    value = draw(weighted((4, usual), (2, st.sampled_from(NUMBER_TEXTS)), (1, texts())))
    return f"{key}={value}"


@st.composite
def toml_files(draw: st.DrawFn) -> bytes:
    """Return the content of a specification's file, which need not be TOML."""
    kind = draw(st.sampled_from(("table", "table", "table", "piece", "piece", "damaged")))
    if kind == "piece":
        return draw(st.sampled_from(_TOML_PIECES))
    table: dict[str, Any] = {
        "method": "fedavg",
        "model": "linear",
        "rounds": 1,
        "cohort": 2,
        "compile": False,
        "data_options": {"clients": 6},
        "hparams": {"batch": 200, "finetune_epochs": 1},
    }
    for _ in range(draw(st.integers(1, 3))):
        key = draw(keys())
        container = draw(
            st.sampled_from(("", "data_options", "hparams", "fedavg", "tune", "tuned"))
        )
        if container == "fedavg" and isinstance(table["hparams"], dict):
            table["hparams"] = {**table["hparams"], "fedavg": {key: draw(values())}}
        elif container and isinstance(table.get(container, {}), dict):
            table[container] = {**table.get(container, {}), key: draw(values())}
        else:
            table[key] = draw(values())
    content = tomli_w.dumps(_drop_none(table)).encode(errors="surrogateescape")
    if kind == "damaged":
        position = draw(st.integers(0, len(content)))
        return content[:position] + draw(st.binary(max_size=4)) + content[position + 2 :]
    return content


def _drop_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _drop_none(each) for key, each in value.items() if each is not None}
    return value


_TOML_PIECES = (
    b"",
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbfrounds = 1\n",
    b"rounds = 1\nrounds = 2\n",
    b"rounds = 1979-05-27T07:32:00Z\n",
    b"rounds = 07:32:00\n",
    b"lr = " + b"[" * 3000 + b"]" * 3000 + b"\n",
    b"a = " + b"{a = " * 3000 + b"1" + b"}" * 3000 + b"\n",
    b"[" + b"a." * 3000 + b"a]\n",
    b"[hparams.fedavg]\nlr = [1, 2]\n",
    b"[hparams]\nfedavg = 1\n",
    b"data_options = 1\n",
    b"hparams = []\n",
    b"tune = 1\n",
    b"tuned = 1\n",
    b"[tuned]\nfedavg = 1\n",
    b"[tune.fedavg]\nlr = 0.1\n",
    b"[tune]\nlr = []\n",
    b"methods = 'fedavg'\n",
    b"methods = [[1]]\n",
    b"methods = ['fedavg', 'fedavg']\n",
    b"seeds = [0, 0]\n",
    b"hidden = [[1]]\n",
    b"hidden = 4\n",
    b"[[data_options]]\nclients = 4\n",
    b"[method]\nname = 1\n",
    b"[data]\nclients = 4\n",
    b"label = '\\u001b[31m'\n",
    b'label = "\\u001b[31mx"\n',
    b"rounds = 9999999999999999999999\n",
    b"rounds = 1" + b"0" * 5000 + b"\n",
    b"lr = nan\n",
    b"lr = -inf\n",
    b"'' = 1\n",
    b"'[red]' = 1\n",
    b'"\\u001b[31m" = 1\n',
)


@st.composite
def specifications(draw: st.DrawFn) -> Specification:
    """Return the words of a command, with a file in some."""
    command = draw(st.sampled_from(COMMANDS))
    hostile = draw(
        st.lists(words(), min_size=0 if command in ("run", "compare") else 1, max_size=3)
    )
    if command in ("data", "methods"):
        name = draw(st.one_of(st.sampled_from((*METHODS, *BUILT_IN_SOURCES)), texts()))
        return Specification((command, name), None)
    if command == "data show":
        options = [word.removeprefix("data.") for word in hostile]
        source = draw(st.sampled_from(("digits", "digits", "synthetic", "mnist", "no.npz")))
        return Specification(("data", "show", source, "clients=6", *options), None)
    file = draw(weighted((2, st.none()), (1, toml_files())))
    benign = dict(BENIGN)
    if draw(st.integers(0, 3)) == 0:
        benign["method"] = draw(st.sampled_from(METHODS))
        benign["epochs"] = "1"
        del benign["finetune_epochs"]
    if command != "run":
        del benign["method"]
        benign |= {"baselines": "false", "seeds": "0"}
    # A key that is named twice is refused, whatever its values are.
    hostile_keys = {word.partition("=")[0] for word in hostile}
    base = [f"{key}={value}" for key, value in benign.items() if key not in hostile_keys]
    names: list[str] = []
    if command in ("compare", "tune"):
        name_or_text = weighted((8, st.sampled_from(METHODS)), (1, texts()))
        names = draw(st.lists(name_or_text, min_size=1, max_size=2))
    if command == "tune":
        base += ["tune.lr=0.1,0.2", "trials=1"]
    if file is not None:
        # What a file says is overridden by words, so most of them are left out.
        base = [word for word in base if draw(st.integers(0, 3)) == 0]
        base.insert(0, SPECIFICATION_FILE)
    return Specification((command, *names, *base, *hostile), file)


# Arguments


class ArrayRecipe(NamedTuple):
    """How an array is made."""

    dtype: str
    shape: tuple[int, ...]
    fill: str
    container: str


DTYPES = (
    *("float32", "float64", "int64", "int32", "uint8", "float32", "float64", "int64"),
    *("float16", "int8", "int16", "uint16", "uint32", "uint64", "bool", ">f4", ">f8", ">i8", ">i4"),
    *("complex64", "object", "U5", "S5", "datetime64[s]", "timedelta64[s]", "longdouble"),
)
FILLS = ("usual", "usual", "usual", "zeros", "negative", "lowest", "highest", "nan", "inf", "text")
CONTAINERS = (
    *("array", "array", "array", "array", "list", "tuple", "tensor", "fortran", "read-only"),
    *("every other", "masked", "matrix", "meta tensor", "sparse tensor", "bfloat16 tensor"),
    *("tensor with gradient", "generator", "array of arrays", "subclass", "None", "scalar"),
)
NUM_EXAMPLES = 24


@st.composite
def arrays(draw: st.DrawFn, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> ArrayRecipe:
    """Return an array, most often of the shape and of one of the types that are expected."""
    if draw(st.integers(0, 2)) > 0:
        return ArrayRecipe(draw(st.sampled_from(dtypes)), shape, "usual", "array")
    dtype = draw(weighted((1, st.sampled_from(dtypes)), (1, st.sampled_from(DTYPES))))
    others: tuple[tuple[int, ...], ...] = (
        (),
        (0,),
        (1,),
        (NUM_EXAMPLES,),
        (NUM_EXAMPLES - 1, *shape[1:]),
        (NUM_EXAMPLES, 1),
        (NUM_EXAMPLES, 0),
        (NUM_EXAMPLES, 2, 2),
        (1, NUM_EXAMPLES),
        (0, *shape[1:]),
    )
    chosen = shape if draw(st.integers(0, 2)) > 0 else draw(st.sampled_from(others))
    fill = draw(st.sampled_from(FILLS))
    return ArrayRecipe(dtype, chosen, fill, draw(st.sampled_from(CONTAINERS)))


class Call(NamedTuple):
    """A call of a function: its name, and values or recipes of its arguments."""

    function: str
    arguments: dict[str, Any]


DATA_OPTIONS = (
    *("classes", "test_share", "validation_clients", "unseen_clients", "adapt", "support"),
    *("server", "seed", "scale", "tokens", "overlap", "name"),  # the name comes last
)
FIT_OPTIONS = (
    *("rounds", "cohort", "seed", "engine", "device", "chunk", "client_state_dir", "pretrain"),
    *("pretrain_lr", "pretrain_batch", "lr", "epochs", "batch", "finetune_epochs", "finetune_lr"),
)
MODELS = (
    *("linear", "linear", "linear", "too wide", "too narrow", "no parameters", "meta", "raises"),
    *("returns None", "returns text", "function", "function that raises", "class", "task", "lazy"),
    *("batch norm", "dropout", "detached", "tuple output", "scalar output", "nan output", "double"),
    *("half", "integer parameters", "complex parameters", "sparse parameters", "shared parameters"),
    *("frozen", "in place", "random", "None", "text", "sequences", "multilabel", "regression"),
)
FIT_METHODS = ("fedavg", "fedavg", "fedsim", "ditto", "per-fedavg", "fsl", "scaffold", "afml")


def _options(names: tuple[str, ...], max_size: int = 2) -> SearchStrategy[dict[str, Any]]:
    odd = weighted((6, values()), (1, st.sampled_from((b"x", 1j, (1, 2), {1, 2}))))
    return st.dictionaries(st.sampled_from(names), odd, max_size=max_size)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Return a call of a public function with a hostile argument or two."""
    function = draw(
        st.sampled_from(
            ("from_arrays", "from_arrays", "fit", "fit", "load", "personalize", "predict")
        )
    )
    if function == "from_arrays":
        columns = {
            "x": draw(arrays((NUM_EXAMPLES, 3), ("float32", "float64", "uint8", "int64"))),
            "y": draw(arrays((NUM_EXAMPLES,), ("int64", "uint8", "float32", "int32"))),
            "client": draw(arrays((NUM_EXAMPLES,), ("int64", "int32", "U5"))),
        }
        return Call(function, columns | draw(_options(DATA_OPTIONS)))
    if function == "fit":
        chosen = {
            "method": draw(weighted((8, st.sampled_from(FIT_METHODS)), (1, values()))),
            "model": draw(st.sampled_from(MODELS)),
        }
        return Call(function, chosen | draw(_options(FIT_OPTIONS)))
    if function == "load":
        name = draw(weighted((8, st.sampled_from(tuple(BUILT_IN_SOURCES))), (1, values())))
        is_known = isinstance(name, str) and name in BUILT_IN_SOURCES
        names = tuple(get_options(name)) if is_known else DATA_OPTIONS[:-1]
        return Call(function, {"name": name, "options": draw(_options(names))})
    if function == "personalize":
        x = draw(arrays((NUM_EXAMPLES, 3), ("float32", "float64")))
        return Call(function, {"x": x, "y": draw(arrays((NUM_EXAMPLES,), ("int64", "uint8")))})
    return Call(function, {"x": draw(arrays((NUM_EXAMPLES, 3), ("float32", "float64")))})
