"""Commands that make and use models for people: personalize, export, predict."""

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[
    Path, typer.Argument(metavar="OUT", help="The folder of a run.", show_default=False)
]
To = Annotated[
    Path,
    typer.Option(
        "--to", help="The folder for the model; must be new or empty.", show_default=False
    ),
]


def personalize(
    out: Out,
    data: Annotated[
        Path, typer.Option("--data", help="An .npz file with x and y.", show_default=False)
    ],
    to: To,
) -> None:
    """Tailors a trained model to a person never seen.

    Example:

        fedtailor personalize DIR --data mine.npz --to my_model
    """
    from fedtailor.personalization.service import format_load_snippet
    from fedtailor.personalization.service import personalize as write_personal_model

    write_personal_model(out, data, to)
    print(
        f"The tailored model is in {to}. Use it with: fedtailor predict {to} --data x.npz --to out.csv"
    )
    print(f"Or in PyTorch:\n\n{format_load_snippet(to)}")


def export(
    out: Out,
    client: Annotated[str, typer.Option("--client", help="The client's id.", show_default=False)],
    to: To,
) -> None:
    """Writes a client's own model, and says how to load it.

    Example:

        fedtailor export DIR --client 7 --to model_of_7
    """
    from fedtailor.personalization.service import export_client, format_load_snippet

    export_client(out, client, to)
    print(f"The model of client {client} is in {to}. In PyTorch:\n\n{format_load_snippet(to)}")


def predict(
    model: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The folder of a tailored model.", show_default=False),
    ],
    data: Annotated[Path, typer.Option("--data", help="An .npz file with x.", show_default=False)],
    to: Annotated[Path, typer.Option("--to", help="The .csv file to write.", show_default=False)],
) -> None:
    """Writes what a tailored model says of new examples, a line each.

    Example:

        fedtailor predict my_model --data x.npz --to out.csv
    """
    from fedtailor.personalization.service import predict as answer
    from fedtailor.personalization.service import write_predictions

    predictions = answer(model, data)
    write_predictions(to, predictions)
    print(f"{len(predictions)} predictions are in {to}.")


COMMANDS = (personalize, export, predict)
NEED_ARGS = (personalize, export, predict)
