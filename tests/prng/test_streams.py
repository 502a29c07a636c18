"""The values of random streams are frozen: another value would change every result."""

from fedtailor import prng
from fedtailor.prng.streams import (
    BatchStream,
    DataStream,
    DropoutStream,
    GroupStream,
    Stream,
)


def test_streams_of_runs_never_change() -> None:
    assert {stream.name: stream.value for stream in Stream} == {
        "COHORT": "cohort",
        "CLIENT": "client",
        "SERVER": "server",
        "PERSONALIZE": "personalise",
        "SCORE": "score",
        "OFFERED_STATES": "offer",
        "PRETRAIN": "pretrain",
        "EVAL_CLIENTS": "watch",
        "UNSEEN_CLIENT": "newcomer",
        "LATENT": "latent",
        "WEIGHTS": "weights",
    }


def test_a_stream_is_hashed_as_its_value() -> None:
    for stream in Stream:
        assert prng.key(3, stream, 1) == prng.key(3, stream.value, 1)


def test_streams_of_data_sets_never_change() -> None:
    assert {stream.name: int(stream) for stream in DataStream} == {
        "SERVER": 0,
        "SPLITS": 1,
        "GROUPS": 2,
        "SUPPORT": 3,
        "DIGITS_SERVER": 10,
        "DIGITS_PARTITION": 11,
        "SYNTHETIC_CLIENT": 20,
        "SYNTHETIC_SERVER_CLIENT": 21,
        "SYNTHETIC_SHARED": 22,
        "STORE_SERVER": 30,
        "STORE_PARTITION": 31,
        "RELABEL": 32,
        "AUGMENT": 33,
        "DAMAGE": 34,
    }


def test_streams_of_groups_never_change() -> None:
    assert {stream.name: stream.value for stream in GroupStream} == {
        "TRAIN": "train",
        "PARTICIPATING": "local",
        "VALIDATION": "validation",
        "UNSEEN": "new",
    }


def test_streams_of_batches_and_dropout_never_change() -> None:
    assert {stream.name: int(stream) for stream in BatchStream} == {"ORDER": 0, "STEP": 1}
    assert {stream.name: int(stream) for stream in DropoutStream} == {"NEXT_MASK": 1}


def test_a_numbered_stream_is_folded_as_its_number() -> None:
    key = prng.key(3, "batches")
    for stream in (*BatchStream, *DropoutStream):
        assert prng.fold(key, stream) == prng.fold(key, int(stream))
        assert prng.fold(key.numpy(), stream) == prng.fold(key.numpy(), int(stream))
