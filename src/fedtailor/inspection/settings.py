"""The settings that an inspection tries: methods that use the server's data, and that do not.

Every setting is a specification that `fedtailor run` takes. Those that use the server's data are
tried at several strengths, none of which is 0. Beside FedAvg, or the method that was asked for,
stand methods without server data that share a part with those that use it: FedAvg with the server
step that FSL takes, and FedProx, as FedSIM's clients train. What these gain needs no server data.
"""

from dataclasses import fields
from typing import Any, NamedTuple

from fedtailor.data.dataset import FederatedDataset
from fedtailor.methods.hparams import LocalHParams
from fedtailor.training import from_config
from fedtailor.training.config import RunConfig, list_hparam_names

STRENGTHS = {"gamma": (0.1, 0.3, 1.0), "beta": (0.25, 1.0)}
"""Values that are tried of the weight of server learning and of the size of FedSIM's correction."""

LEARNERS = ("fsl", "fsl-p")
"""Methods whose server learns; without that they are FedAvg with another server step."""

SERVER_METHODS = (*LEARNERS, "fedsim", "ds")
"""Methods that use the server's data, alone or as a part of a composition."""

_SERVER_LR_DIGITS = 4
"""Significant digits of a server step that is tried without server data."""


class Setting(NamedTuple):
    """A run that is tried."""

    label: str  # the words of a command line that tell it from the others
    config: RunConfig
    uses_server: bool


def make_settings(config: RunConfig, data: FederatedDataset) -> list[Setting]:
    """Return the settings that are tried, those without server data first.

    Args:
        config: What was asked for. If its method uses the server's data, that method is tried at
            several strengths; else FSL's learning around it, and beside FedAvg also FedSIM.
        data: The data set, on whose size some defaults depend.
    """
    settings: dict[str, Setting] = {}
    for target in _list_targets(config):
        for setting in (*_make_references(target, data), *_make_candidates(target)):
            settings.setdefault(setting.label, setting)
    return sorted(settings.values(), key=lambda setting: setting.uses_server)


def uses_server_data(method: str) -> bool:
    """Return whether a method, or a part of a composition, uses the server's data."""
    return any(part in SERVER_METHODS for part in method.split("+"))


def _list_targets(config: RunConfig) -> list[RunConfig]:
    """Return specifications of the methods with server data that are tried."""
    if uses_server_data(config.method):
        return [config]
    if config.method == "fedavg":
        return [_change_method(config, "fsl"), _change_method(config, "fedsim")]
    return [_change_method(config, f"fsl+{config.method}")]


def _make_references(config: RunConfig, data: FederatedDataset) -> list[Setting]:
    """Return what can be had without server data in place of a method that uses it."""
    *wrappers, inner = config.method.split("+")
    kept = [name for name in wrappers if name not in SERVER_METHODS]
    averaging = "+".join([*kept, "fedavg"])
    without_data = config.model_copy(update={"pretrain": 0})
    hparams = from_config.resolve_hparams(config, data)
    if inner in LEARNERS:
        server_lr = float(f"{hparams['server_lr']:.{_SERVER_LR_DIGITS}g}")
        return [
            _make_setting(_change_method(without_data, averaging), False),
            _make_variant(without_data, averaging, False, server_lr=server_lr),
        ]
    if inner == "fedsim":
        proximal = "+".join([*kept, "fedprox"])
        return [
            _make_setting(_change_method(without_data, averaging), False),
            _make_variant(without_data, proximal, False, lam=hparams["lam"]),
        ]
    plain = averaging if inner == "ds" else "+".join([*kept, inner])
    return [_make_setting(_change_method(without_data, plain), False)]


def _make_candidates(config: RunConfig) -> list[Setting]:
    """Return a method that uses the server's data at several strengths, if it has any."""
    is_learning = any(part in LEARNERS for part in config.method.split("+"))
    strength = "gamma" if is_learning else "beta"
    if strength not in config.hparams:
        return [_make_setting(config, True)]
    values = {*STRENGTHS[strength], float(config.hparams[strength])} - {0.0}
    return [
        _make_variant(config, config.method, True, **{strength: value}) for value in sorted(values)
    ]


def _make_variant(config: RunConfig, method: str, uses_server: bool, **hparams: float) -> Setting:
    """Return a setting of a method with other values of some hyper-parameters."""
    changed = _change_method(config, method)
    changed = changed.model_copy(update={"hparams": changed.hparams | hparams})
    words = [method, *(f"{name}={value:g}" for name, value in hparams.items())]
    return Setting(" ".join(words), changed.resolve(), uses_server)


def _make_setting(config: RunConfig, uses_server: bool) -> Setting:
    return Setting(config.method, config, uses_server)


def _change_method(config: RunConfig, method: str) -> RunConfig:
    """Return the specification with another method.

    Hyper-parameters are kept as far as they mean the same: those of local training, and all that
    both have if they have the inner method in common.
    """
    if method == config.method:
        return config
    kept = {field.name for field in fields(LocalHParams)}
    if method.split("+")[-1] == config.method.split("+")[-1]:
        kept = set(list_hparam_names(method))
    hparams: dict[str, Any] = {
        name: value for name, value in config.hparams.items() if name in kept
    }
    return config.model_copy(update={"method": method, "hparams": hparams}).resolve()
