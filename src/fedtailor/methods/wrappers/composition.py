"""Methods made of methods: `fsl+fedsim` is FedSIM whose server also learns, `fsl+per+fedmeta` is two around one."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, make_dataclass
from functools import partial
from typing import Any, Protocol

from fedtailor.core.task import Task
from fedtailor.core.types import Method
from fedtailor.errors import require, suggest_name
from fedtailor.methods import ds
from fedtailor.methods.hparams import LocalHParams
from fedtailor.methods.wrappers import personal_layers, server_learning


class MethodModule(Protocol):
    """What the file of a method offers: its hyper-parameters and a builder. Its docstring has the equations."""

    __doc__: str
    HParams: type[Any]
    build: Callable[[Task, Any], Method]


@dataclass(frozen=True)
class Wrapper:
    """What can be put around a method."""

    description: str
    hparams_class: type[Any]
    build: Callable[[Task, Any, Method], Method]


def _build_data_sharing(task: Task, hparams: Any, method: Method) -> Method:
    return ds.share_server_data(method)


WRAPPERS = {
    "fsl": Wrapper(server_learning.__doc__ or "", server_learning.HParams, server_learning.build),
    "fsl-p": Wrapper(
        server_learning.__doc__ or "",
        server_learning.HParams,
        partial(server_learning.build, is_parallel=True),
    ),
    "ds": Wrapper(
        "Data sharing: every client also trains on the server's examples.",
        LocalHParams,
        _build_data_sharing,
    ),
    "per": Wrapper(personal_layers.__doc__ or "", personal_layers.HParams, personal_layers.build),
}
"""What may stand before another method's name, by the word for it."""


class Composition:
    """The file that a composition would have: wrappers, from the outermost on, around a method."""

    def __init__(self, name: str, wrapper_names: tuple[str, ...], inner: MethodModule) -> None:
        for word in wrapper_names:
            hint = suggest_name(word, WRAPPERS)
            require(
                word in WRAPPERS,
                f"Nothing called '{word}' can be put around a method, as in '{name}'; {hint}",
            )
        self._name, self._inner = name, inner
        self._wrappers = [WRAPPERS[word] for word in wrapper_names]
        abouts = dict.fromkeys(wrapper.description.strip() for wrapper in self._wrappers)
        self.__doc__ = "\n\n".join(
            [
                f"{name}: {' around '.join([*wrapper_names, inner.__doc__.partition(':')[0]])}.",
                *abouts,
                inner.__doc__.strip(),
            ]
        )
        self.HParams = _merge_hparams(
            name, [wrapper.hparams_class for wrapper in self._wrappers], inner.HParams
        )

    def build(self, task: Task, hparams: Any) -> Method:
        """The method, with the outermost wrapper put around it last."""
        inner_options = {
            field.name: getattr(hparams, field.name) for field in fields(self._inner.HParams)
        }
        method = self._inner.build(task, self._inner.HParams(**inner_options))
        for wrapper in reversed(self._wrappers):
            method = wrapper.build(task, hparams, method)
        return method._replace(name=self._name)


def _merge_hparams(name: str, outer: list[type[Any]], inner: type[Any]) -> type[Any]:
    """The hyper-parameters of all together. The class cannot be found by its name, so no method may bind one."""
    kinds = [kind for kind in dict.fromkeys(outer) if not issubclass(inner, kind)]
    inner_fields = [  # else the wrappers' win
        (each.name, each.type, field(default=each.default, metadata=each.metadata))
        for each in fields(inner)
    ]
    merged = make_dataclass(
        "HParams", inner_fields, bases=(*kinds, inner), frozen=True, kw_only=True
    )
    merged.__module__ = f"{__name__}.{name}"
    return merged
