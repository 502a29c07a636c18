"""Random streams: what a draw is for. Their values are hashed into keys and must never change.

A member may be renamed, its value may not: another value would give every run other cohorts, batches and weights.
"""

from enum import IntEnum, StrEnum


class Stream(StrEnum):
    """What keys are derived for in a run."""

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
        """The stream's name in messages."""
        return self.name.lower().replace("_", " ")


GROUP_STREAMS = {
    "train": "train",
    "participating": "local",
    "validation": "validation",
    "unseen": "new",
}
"""What the name of a group of clients is in a key."""


class DataStream(IntEnum):
    """What a data set draws for, as part of its seed."""

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
