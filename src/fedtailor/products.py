"""Products of stacks of matrices that sum over much and leave little, shared out along what they sum over.

On a GPU a product is worked off in tiles of its outcome. Ten clients with 20 examples and 128 outputs have 20 of them,
for 132 multiprocessors, whatever the number of inputs. In shares of the inputs, each in a sum of its own, all are busy.
"""

import torch
from torch import Tensor

from fedtailor.convolution import works_on
from fedtailor.sharing import shares_of

_LONG = 2048


def is_long(x: Tensor, w: Tensor) -> bool:
    """Whether x w' is better shared out: on a GPU, in short or shortened floats, with inputs side by side in both."""
    if not works_on(x.device) or x.shape[-1] < _LONG:
        return False
    short = x.dtype == torch.bfloat16 or (x.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32)
    return short and x.stride(-1) == w.stride(-1) == 1 and shares_of(x, w) > 2


@torch.library.custom_op("fedtailor::multiply", mutates_args=())
def multiply(x: Tensor, w: Tensor) -> Tensor:
    """x w' in sums over shares of the inputs [clients, shares, rows, outputs], in float32; without inputs, a zero."""
    if x.is_cuda:
        from fedtailor.kernels import multiply as on_gpu

        return on_gpu(x, w)
    parts = shares_of(x, w)
    cut = [each.float().tensor_split(parts, 2) for each in (x, w)]
    return torch.stack([a @ b.mT for a, b in zip(*cut, strict=True)], 1)


@multiply.register_fake
def _(x: Tensor, w: Tensor) -> Tensor:
    return x.new_empty((len(x), shares_of(x, w), x.shape[1], w.shape[1]), dtype=torch.float32)
