"""Prediction, before any long run, of whether training with the server's data will help.

inspect.py    the inspection: what it consists of, and the verdict
trials.py     short training runs from one warm model, with and without the server's data
closeness.py  how close the server's data is to the clients': labels, images, examples, gradients
text.py       an inspection as sentences, bars and JSON
statistics/   distances, gradients and conditions, each of which can be used without an inspection
"""
