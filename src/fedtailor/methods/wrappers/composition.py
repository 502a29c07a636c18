"""Methods composed of wrappers around a method: `fsl+fedsim`, `fsl+per+fedmeta`."""

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
    """The file of a method: its hyper-parameters and a builder, and the equations as docstring."""

    __doc__: str
    HParams: type[Any]
    build: Callable[[Task, Any], Method]


@dataclass(frozen=True)
class Wrapper:
    """A wrapper with its hyper-parameters; `build` takes the method to go around last."""

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
"""The wrappers by the words for them, which stand before a method's name."""


class Composition:
    """A stand-in for the file of a method that is composed of wrappers around another."""

    def __init__(self, name: str, wrapper_names: tuple[str, ...], inner: MethodModule) -> None:
        """Compose a method.

        Args:
            name: The name of the composition.
            wrapper_names: Words for wrappers, the outermost first.
            inner: The file of the method inside.
        """
        for word in wrapper_names:
            hint = suggest_name(word, WRAPPERS)
            require(
                word in WRAPPERS,
                f"There is no wrapper '{word}', as in '{name}'; {hint}",
            )
        self._name = name
        self._inner = inner
        self._wrappers = [WRAPPERS[word] for word in wrapper_names]
        inner_title, _, _ = inner.__doc__.partition(":")
        title = f"{name}: {' around '.join([*wrapper_names, inner_title])}."
        # fsl and fsl-p have one description in common.
        descriptions = dict.fromkeys(wrapper.description.strip() for wrapper in self._wrappers)
        self.__doc__ = "\n\n".join([title, *descriptions, inner.__doc__.strip()])
        self.HParams = _merge_hparams(
            name, [wrapper.hparams_class for wrapper in self._wrappers], inner.HParams
        )

    def build(self, task: Task, hparams: Any) -> Method:
        """Return the method, with the outermost wrapper applied last."""
        inner_options = {
            hparam.name: getattr(hparams, hparam.name) for hparam in fields(self._inner.HParams)
        }
        method = self._inner.build(task, self._inner.HParams(**inner_options))
        for wrapper in reversed(self._wrappers):
            method = wrapper.build(task, hparams, method)
        return method._replace(name=self._name)


def _merge_hparams(name: str, outer: list[type[Any]], inner: type[Any]) -> type[Any]:
    """Return a dataclass with the hyper-parameters of all wrappers and of the method inside.

    The class cannot be imported by its name, so instances do not pickle, and no method may bind
    one.
    """
    bases = [kind for kind in dict.fromkeys(outer) if not issubclass(inner, kind)]
    # Declared anew, so that the defaults and descriptions of the inner method take precedence.
    inner_fields = [
        (each.name, each.type, field(default=each.default, metadata=each.metadata))
        for each in fields(inner)
    ]
    return make_dataclass(
        "HParams",
        inner_fields,
        bases=(*bases, inner),
        namespace={"method_name": name},
        frozen=True,
        kw_only=True,
    )
