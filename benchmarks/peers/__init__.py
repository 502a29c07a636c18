"""The same work done by this project, by a plain loop and by other projects, each a process in its
own environment.
"""
