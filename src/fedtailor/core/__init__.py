"""The tools of a method author: the contract, tasks, trees, derivatives and optimizers.

types.py          the records that a method consists of, and what travels in a round
task.py           a model with a loss and metrics as pure functions of its parameters
functionalize.py  what makes a module pure: keyed dropout, refused layers, seeded initialization
trees.py          arithmetic on nested dicts and tuples of tensors
autodiff.py       gradients and Hessian-vector products
optimizers.py     optimizers as pure functions
schedules.py      learning-rate schedules
losses.py         losses per example
metrics.py        metrics per example
"""
