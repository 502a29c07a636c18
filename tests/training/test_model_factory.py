"""Models from a specification, and the code that makes the same ones."""

from typing import Any

import pytest
import torch

import fedtailor.models
from fedtailor.data.dataset import ExampleSpec
from fedtailor.training import from_config
from fedtailor.training.config import RunConfig
from fedtailor.training.overrides import read_run_config

IMAGES = ExampleSpec(shape=(3, 32, 32), label_shape=(), classes=10, scale=1.0, tokens=False)
NEXT_TOKENS = ExampleSpec(shape=(20,), label_shape=(20,), classes=30, scale=1.0, tokens=True)
NEXT_TOKEN = NEXT_TOKENS._replace(label_shape=())


@pytest.mark.parametrize(
    ("model", "fields", "example_spec"),
    [
        ("mlp", {"hidden": (8, 4)}, IMAGES),
        ("mlp", {"activation": "tanh"}, IMAGES),
        ("linear", {}, IMAGES),
        ("lenet", {}, IMAGES),
        ("lstm", {"hidden": (8, 8)}, NEXT_TOKENS),
        ("lstm", {"hidden": (8,)}, NEXT_TOKEN),
        ("shakespeare", {}, NEXT_TOKENS),
    ],
)
def test_the_formatted_call_makes_the_same_model(
    model: str, fields: dict[str, Any], example_spec: ExampleSpec
) -> None:
    config: RunConfig = read_run_config(["data=digits", "method=fedavg"])
    config = config.model_copy(update={"model": model, **fields})
    factory = from_config.get_model_factory(config, example_spec)
    code = f"fedtailor.models.{factory.format_call()}"
    from_code = eval(code, {"fedtailor": fedtailor, "torch": torch})
    assert str(from_code) == str(factory())  # layers, their sizes and activations
    inputs = torch.zeros(2, *example_spec.shape, dtype=torch.int64 if example_spec.tokens else None)
    assert from_code(inputs).shape == factory()(inputs).shape
