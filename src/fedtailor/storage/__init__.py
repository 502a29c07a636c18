"""Files on disk: written all or nothing, locked, and checked by their checksums.

paths.py         where data and compiled code are kept
atomic.py        files and folders that are replaced all or nothing
locks.py         locks between processes
checksums.py     checksums, and files that are written together with theirs
data_folders.py  folders below the data directory that one process at a time builds
files.py         JSON, tensors and arrays
"""
