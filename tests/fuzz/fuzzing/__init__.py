"""Fuzzing: seeded hostile cases, each in a forked child, and what becomes of them.

Case N of a target under a seed is always the same. `tools/fuzz.py` runs them for a given time,
tests/fuzz/test_fuzz.py a few of them.

cases.py           a case, the random draws that it is made of, and what a target is
children.py        a case in a forked child with limits, and the verdict on it
commands.py        commands of fedtailor in this process, and the verdict on what they print
mutations.py       seeded damage to files
strategies.py      hypothesis strategies for specifications and arguments
results.py         what a command leaves behind, as text that can be compared
specifications.py, arguments.py, data_files.py, stores.py, folders.py    the targets
campaign.py        processes that run the cases of a target, and the distinct findings
"""
