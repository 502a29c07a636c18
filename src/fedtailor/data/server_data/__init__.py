"""The server's examples: where they come from (`SERVER_SOURCES`), and how they may be damaged.

Another source is a function of one of the kinds in `source`, and an entry here. Its options, their
checks and the help of the command line follow from the entry.
"""

from fedtailor.data.server_data import external, holdout
from fedtailor.data.server_data.source import NO_SOURCE, Examples, ServerSource

__all__ = ["NO_SOURCE", "SERVER_SOURCES", "Examples", "ServerSource"]

SERVER_SOURCES: dict[str, ServerSource] = {
    "examples": ServerSource("random examples of the data set", draw_rows=holdout.draw_examples),
    "classes": ServerSource(
        "random examples of the data set, equally many of each class",
        draw_rows=holdout.draw_balanced,
    ),
    "whole-clients": ServerSource(
        "all examples of random clients; `server` is the amount of clients",
        draw_clients=holdout.draw_clients,
    ),
    "client-samples": ServerSource(
        "some examples of each of random clients; `server` is the amount of clients",
        draw_client_rows=holdout.draw_from_clients,
    ),
    "own": ServerSource(
        "all examples that the data set has for the server; `server` is without effect, unless 0",
        make_examples=external.get_own_examples,
    ),
    "rendered": ServerSource(
        "rendered characters, for data sets of images of characters",
        make_examples=external.render_examples,
    ),
    "set": ServerSource(
        "examples of another data set, whose classes have the same names",
        make_examples=external.draw_from_other_set,
        hash_content=external.hash_other_set,
    ),
}
"""Sources of the server's examples by the value of the option `server_from`."""
