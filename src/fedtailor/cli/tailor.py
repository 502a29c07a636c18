"""Commands that make and use models for people: personalise, export, predict."""

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path, typer.Argument(metavar="OUT", help="The folder of a run.", show_default=False)]
To = Annotated[Path, typer.Option("--to", help="The folder for the model; must be new or empty.", show_default=False)]


def personalise(
    out: Out,
    data: Annotated[Path, typer.Option("--data", help="An .npz file with x and y.", show_default=False)],
    to: To,
) -> None:
    """Tailors a trained model to a person never seen.

    Example:

        fedtailor personalise DIR --data mine.npz --to my_model
    """
    from fedtailor.run.tailor import how_to_load
    from fedtailor.run.tailor import personalise as make

    make(out, data, to)
    print(f"The tailored model is in {to}. Use it with: fedtailor predict {to} --data x.npz --to out.csv")
    print(f"Or in PyTorch:\n\n{how_to_load(to)}")


def export(
    out: Out,
    client: Annotated[str, typer.Option("--client", help="The client's id.", show_default=False)],
    to: To,
) -> None:
    """Writes a client's own model, and says how to load it.

    Example:

        fedtailor export DIR --client 7 --to model_of_7
    """
    from fedtailor.run.tailor import export as make
    from fedtailor.run.tailor import how_to_load

    make(out, client, to)
    print(f"The model of client {client} is in {to}. In PyTorch:\n\n{how_to_load(to)}")


def predict(
    model: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a tailored model.", show_default=False)],
    data: Annotated[Path, typer.Option("--data", help="An .npz file with x.", show_default=False)],
    to: Annotated[Path, typer.Option("--to", help="The .csv file to write.", show_default=False)],
) -> None:
    """Writes what a tailored model says of new examples, a line each.

    Example:

        fedtailor predict my_model --data x.npz --to out.csv
    """
    from fedtailor.run.tailor import predict as answer
    from fedtailor.run.tailor import write_csv

    answers = answer(model, data)
    write_csv(to, answers)
    print(f"{len(answers)} predictions are in {to}.")


COMMANDS = (personalise, export, predict)
NEED_WORDS = (personalise, export, predict)
