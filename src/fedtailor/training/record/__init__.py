"""The record of a run: what its parts are, and how they are computed.

schema.py           the typed parts of a record, with the version of its format
build.py            parts that come from what a run computes with: scores, costs, checksums
summary.py          groups of clients, last rounds and speed in a few figures
dataset_summary.py  clients and sizes, and whether the data are still the same
provenance.py       versions, machine and commit
"""
