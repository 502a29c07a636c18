"""Wrappers: functions from method to method, which go around any method.

personal_layers.py  some layers stay with each client
server_learning.py  the server also trains on data of its own
composition.py      the words for wrappers, and methods composed with them: `fsl+per+fedmeta`
"""
