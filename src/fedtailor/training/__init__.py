"""One run: its specification, its rounds, its record and its checkpoints.

config.py, overrides.py                the specification, and reading it from files and arguments
runner.py, loop.py, pretraining.py     a run from its start to its end
early_stopping.py                      an end before that, judged by validation clients
resume_changes.py                      what may change when a run is resumed
start_weights.py, trained_model.py     a run from the weights of another one
from_config.py, context.py             objects from a specification, and their engine's context
engine_choice.py                       the engine, chosen once
run_dir.py, checkpoint.py, record/     the files that a run leaves
round_log.py, verification.py          its log of rounds, and whether all is what was written
loggers.py, shell_commands.py          what users see besides
distributed_launch.py                  runs in several processes
"""
