"""An anchor outside: PFLlib's split, methods as plain loops, and published tables.

`pfllib_split` recomputes the split, `plain_loops` has the methods in plain torch, `settings` says
what is trained, `sides` trains this project and the loops on the same cohorts and batches, and
`published` has the tables of others with what differs there.
"""
