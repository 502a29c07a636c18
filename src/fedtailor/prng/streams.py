"""Random streams: names of the purposes of draws.

Their values are hashed into keys. A member may be renamed, but its value must never change: another
value would give every run other cohorts, batches and weights.
"""

from enum import IntEnum, StrEnum


class Stream(StrEnum):
    """Purposes of keys in a run."""

    COHORT = "cohort"
    CLIENT = "client"
    SERVER = "server"
    PERSONALIZE = "personalise"
    SCORE = "score"
    OFFERED_STATES = "offer"
    PRETRAIN = "pretrain"
    EVAL_CLIENTS = "watch"
    UNSEEN_CLIENT = "newcomer"
    LATENT = "latent"
    WEIGHTS = "weights"

    @property
    def label(self) -> str:
        """Return the name of the stream in messages."""
        return self.name.lower().replace("_", " ")


class GroupStream(StrEnum):
    """Groups of clients in keys; a member has the name of its group in capitals."""

    TRAIN = "train"
    PARTICIPATING = "local"
    VALIDATION = "validation"
    UNSEEN = "new"


class BatchStream(IntEnum):
    """Purposes of the key of a stream of batches."""

    ORDER = 0
    STEP = 1


class DropoutStream(IntEnum):
    """Purposes of the key of a dropout layer, besides its mask."""

    NEXT_MASK = 1


class DataStream(IntEnum):
    """Purposes of draws of a data set, as parts of their seeds."""

    SERVER = 0
    SPLITS = 1
    GROUPS = 2
    SUPPORT = 3
    DIGITS_SERVER = 10
    DIGITS_PARTITION = 11
    SYNTHETIC_CLIENT = 20
    SYNTHETIC_SERVER_CLIENT = 21
    SYNTHETIC_SHARED = 22
    STORE_SERVER = 30
    STORE_PARTITION = 31
    RELABEL = 32
    AUGMENT = 33
    DAMAGE = 34
