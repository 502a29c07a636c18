"""Whether what is computed now will be differentiated twice by autograd.

Some of torch's kernels have a gradient, but no gradient of that; operations look here before they use one.
"""

from contextvars import ContextVar

needs_double_backward: ContextVar[bool] = ContextVar("needs_double_backward", default=False)
