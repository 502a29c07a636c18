"""Readers of canonical file formats: each turns paths into an iterator of blocks and never holds a whole set in RAM.

Images come as uint8 [n, channels, height, width], labels in the smallest integer type that fits, "testing" says which
examples belong to the canonical test part. Bad files are refused with one sentence that names them.
"""
