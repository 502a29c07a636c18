"""Studies: a question, the comparisons that answer it, and what came out, each in a folder.

config (study.toml) <- locate (where they are)
config <- plan (comparisons at a scale) <- execute (trials, then runs)
execute <- record (what is kept) <- tables, figures (what is shown) <- publish (files and documents)
"""
