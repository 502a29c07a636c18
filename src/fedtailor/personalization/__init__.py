"""Models for one client: personalized on its examples, exported from a run, used to predict.

personal_model.py  a personal model in RAM
service.py         commands on folders: personalize, export, predict
"""
