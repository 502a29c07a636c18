"""Readers: turn files, published data sets' and users' own, into blocks of examples.

A reader yields `Block`s and does not hold a whole data set in RAM, except where its module says so.
Of published data sets, images are uint8 [n, channels, height, width], labels have the smallest
integer type that fits, and the column "is_test" marks the examples of the canonical test part.
A file that cannot be used is refused with an InputError that names it.
"""
