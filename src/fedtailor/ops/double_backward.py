"""A flag for the case that autograd will differentiate twice.

Some of torch's kernels have a gradient, but that gradient has none; operations read the flag before
they use one. `core.autodiff` sets it.
"""

from contextvars import ContextVar

needs_double_backward: ContextVar[bool] = ContextVar("needs_double_backward", default=False)
