"""Counts of a dataset's rows: read, used by clients, held by the server, and left out."""

from collections.abc import Mapping
from typing import NamedTuple

UNASSIGNED_REASON = "assigned to no client"
"""Reason for rows that were left out where no other one is known."""

OVERLAP_NOTE = "The server may have examples that clients have, too, as declared by overlap=true."
"""Note on a dataset with overlap."""


class RowCounts(NamedTuple):
    """Numbers of rows of the table that a dataset was made from, and of examples from elsewhere.

    `read` is `clients + server - shared` and everything in `left_out`.
    """

    read: int  # rows of the table
    clients: int  # rows that clients have, in all splits together
    server: int  # rows that the server has
    shared: int  # rows that clients and the server have, as `overlap` allows
    left_out: dict[str, int]  # rows that neither has, by reason
    elsewhere: int  # examples that the server has from elsewhere
    given_up: int  # examples that were drawn for the server, but a client has or is tested on
    equal: int  # examples from elsewhere that equal a client's in x and y

    def __str__(self) -> str:
        """Return the numbers as sentences."""
        used = f"{self.clients:,} used by clients, {self.server:,} held by the server"
        if self.shared:
            used += f" ({self.shared:,} of them by clients, too)"
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.left_out.items())
        left_out = f"{sum(self.left_out.values()):,} left out"
        if reasons:
            left_out += f" ({reasons})"
        sentences = [f"{self.read:,} rows read: {used}, {left_out}."]
        if self.elsewhere:
            sentences.append(
                f"{self.elsewhere:,} examples of the server are from elsewhere, of which "
                f"{self.equal:,} equal a client's in x and y."
            )
        if self.given_up:
            sentences.append(
                f"{self.given_up:,} examples drawn for the server were given up, as clients have "
                "them."
            )
        return " ".join(sentences)

    def name_unassigned(self, reason: str) -> "RowCounts":
        """Return the counts with another reason for rows that are assigned to no client."""
        left_out = dict(self.left_out)
        count = left_out.pop(UNASSIGNED_REASON, 0)
        if count:
            left_out[reason] = left_out.get(reason, 0) + count
        return self._replace(left_out=left_out)


def make_left_out(reasons: Mapping[str, int], total: int) -> dict[str, int]:
    """Return the reasons with rows, and what they do not explain of a total."""
    left_out = {reason: int(count) for reason, count in reasons.items() if count}
    rest = total - sum(left_out.values())
    if rest:
        left_out[UNASSIGNED_REASON] = rest
    return left_out
