"""Methods made of methods: `fsl+fedsim` is FedSIM whose server also learns, `fsl+per+fedmeta` is two around one."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, make_dataclass
from functools import partial
from typing import Any, Protocol

from fedtailor.errors import nearest, require
from fedtailor.methods import ds, personal_layers, pieces, server_learning
from fedtailor.task import Task
from fedtailor.types import Method


class MethodFile(Protocol):
    """What the file of a method offers: its hyper-parameters and a builder. Its docstring has the equations."""

    __doc__: str
    Hyper: type[Any]
    build: Callable[[Task, Any], Method]


@dataclass(frozen=True)
class Wrapper:
    """What can be put around a method."""

    about: str
    hyper: type[Any]
    build: Callable[[Task, Any, Method], Method]


def _share(task: Task, hyper: Any, method: Method) -> Method:
    return ds.shared(method)


WRAPPERS = {
    "fsl": Wrapper(server_learning.__doc__ or "", server_learning.Hyper, server_learning.build),
    "fsl-p": Wrapper(server_learning.__doc__ or "", server_learning.Hyper, partial(server_learning.build, beside=True)),
    "ds": Wrapper("Data sharing: every client also trains on the server's examples.", pieces.Local, _share),
    "per": Wrapper(personal_layers.__doc__ or "", personal_layers.Hyper, personal_layers.build),
}
"""What may stand before another method's name, by the word for it."""


class Composition:
    """The file that a composition would have: wrappers, from the outermost on, around a method."""

    def __init__(self, name: str, words: tuple[str, ...], inner: MethodFile) -> None:
        for word in words:
            known = nearest(word, WRAPPERS)
            require(word in WRAPPERS, f"Nothing called '{word}' can be put around a method, as in '{name}'; {known}")
        self._name, self._inner = name, inner
        self._wrappers = [WRAPPERS[word] for word in words]
        abouts = dict.fromkeys(wrapper.about.strip() for wrapper in self._wrappers)
        self.__doc__ = "\n\n".join(
            [f"{name}: {' around '.join([*words, inner.__doc__.partition(':')[0]])}.", *abouts, inner.__doc__.strip()]
        )
        self.Hyper = _hyper(name, [wrapper.hyper for wrapper in self._wrappers], inner.Hyper)

    def build(self, task: Task, hyper: Any) -> Method:
        """The method, with the outermost wrapper put around it last."""
        own = {field.name: getattr(hyper, field.name) for field in fields(self._inner.Hyper)}
        made = self._inner.build(task, self._inner.Hyper(**own))
        for wrapper in reversed(self._wrappers):
            made = wrapper.build(task, hyper, made)
        return made._replace(name=self._name)


def _hyper(name: str, outer: list[type[Any]], inner: type[Any]) -> type[Any]:
    """The hyper-parameters of all together. The class cannot be found by its name, so no method may bind one."""
    kinds = [kind for kind in dict.fromkeys(outer) if not issubclass(inner, kind)]
    own = [  # else the wrappers' win
        (each.name, each.type, field(default=each.default, metadata=each.metadata)) for each in fields(inner)
    ]
    made = make_dataclass("Hyper", own, bases=(*kinds, inner), frozen=True, kw_only=True)
    made.__module__ = f"{__name__}.{name}"
    return made
