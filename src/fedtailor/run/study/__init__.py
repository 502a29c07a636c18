"""Studies: a question, the comparisons that answer it, and what came out, each in a folder.

reading (study.toml) <- places (where they are)
reading <- planning (comparisons at a scale) <- running (trials, then runs)
running <- records (what is kept) <- tables, figures (what is shown) <- written (files and documents)
"""
