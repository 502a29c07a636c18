"""Studies: questions of papers, the comparisons that answer them, and their results.

Each is a folder with `study.toml`. The modules, and what each builds on:

    config (reads study.toml) <- locate (finds the folders of studies)
    config <- plan (comparisons at a scale) <- execute (trials, then runs)
    execute <- record (what is kept) <- tables, figures (what is shown) <- publish (documents)
"""
