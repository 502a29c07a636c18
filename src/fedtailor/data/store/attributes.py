"""`DatasetAttributes`: facts about the examples of a store that its arrays do not tell."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import ConfigDict

from fedtailor.data.arguments import require_classes, require_scale
from fedtailor.errors import require


@dataclass(frozen=True, kw_only=True)
class DatasetAttributes:
    """Facts about the examples of a data set that its arrays do not tell."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    # None: targets are real-valued; "auto": that if they are floating, and otherwise as many
    # classes as the largest label says
    classes: int | Literal["auto"] | None = "auto"
    scale: float = 1.0  # factor of integer x when it is converted to floating point
    tokens: bool = False  # x is token ids and stays integer
    padding: tuple[int, ...] = ()  # tokens of y that count neither for the loss nor the accuracy
    unscored_tokens: tuple[int, ...] = ()  # tokens of y that are learned, but not in the accuracy
    labels: tuple[str, ...] = ()  # name of each class, if they have names
    coarse: tuple[int, ...] = ()  # coarse label of each class, unless "coarse" is a column
    is_dark: bool = False  # images are dark on white
    about: str = "your own"  # description in one line

    def validate(self, name: str) -> None:
        """Raise `InputError`, with the name of the data set, for what a user may get wrong."""
        require_classes(name, self.classes)
        require_scale(name, self.scale)
        require(
            isinstance(self.tokens, bool),
            f"{name}: tokens must be true or false, got {self.tokens!r}.",
        )
