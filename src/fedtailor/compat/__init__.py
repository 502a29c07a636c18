"""The only module that uses private parts of torch or depends on its version: `torch_internals`."""
