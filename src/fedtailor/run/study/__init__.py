"""Studies: a question, the comparisons that answer it, and what came out, each in a folder.

reading (study.toml) <- places (where they are)
reading <- planning (comparisons at a scale) <- working, processes (runs) <- choosing (trials) <- running (all of it)
running <- records (what is kept) <- tables, figures (what is shown) <- written (files and documents)
"""
