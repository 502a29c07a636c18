"""Files on disk: atomic writes, locks between processes, and checksums.

paths.py          the folder for data and compiled code
atomic.py         files and folders that are replaced all or nothing
locks.py          locks between processes
checksums.py      checksums, also computed while a file is written
data_folders.py   folders in the data directory that one process at a time builds
files.py          JSON, tensors and arrays
typed_json.py     JSON whose content has a type and, mostly, the version of a format
manifest.py       folders whose files are read only if they are what was written
chained_lines.py  JSON Lines with checksums
"""
