"""Commands that make personal models from a run, and predict with them."""

from pathlib import Path
from typing import Annotated

import typer

from fedtailor.cli.progress import TrustCodeFlag
from fedtailor.cli.terminal import format_path, print_text
from fedtailor.errors import make_printable

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
    trust_code: TrustCodeFlag = False,
) -> None:
    """Personalize a model for an unseen client.

    The method of the run in OUT personalizes its global model on the examples of `--data`. The
    result is written to the folder `--to`.

    Example:

        fedtailor personalize DIR --data mine.npz --to my_model
    """
    from fedtailor.personalization.service import format_load_snippet
    from fedtailor.personalization.service import personalize as write_personal_model
    from fedtailor.training.from_config import trust_folder
    from fedtailor.training.shell_commands import quote_path

    if trust_code:
        trust_folder(out)
    write_personal_model(out, data, to)
    command = f"fedtailor predict {quote_path(to)} --data x.npz --to out.csv"
    print_text(f"The personal model is in {format_path(to)}. Use it with: {command}")
    print_text(f"Or in PyTorch:\n\n{format_load_snippet(to)}")


def export(
    out: Out,
    client: Annotated[str, typer.Option("--client", help="The client's id.", show_default=False)],
    to: To,
    trust_code: TrustCodeFlag = False,
) -> None:
    """Write the personal model of a client, and print how to load it.

    The global model of the run in OUT is personalized on the data of `--client`, as it was for the
    final scores. The result is written to the folder `--to`.

    Example:

        fedtailor export DIR --client 7 --to model_of_7
    """
    from fedtailor.personalization.service import export_client, format_load_snippet
    from fedtailor.training.from_config import trust_folder

    if trust_code:
        trust_folder(out)
    export_client(out, client, to)
    place = f"The model of client {make_printable(client)} is in {format_path(to)}"
    print_text(f"{place}. In PyTorch:\n\n{format_load_snippet(to)}")


def predict(
    model: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The folder of a personal model.", show_default=False),
    ],
    data: Annotated[Path, typer.Option("--data", help="An .npz file with x.", show_default=False)],
    to: Annotated[Path, typer.Option("--to", help="The .csv file to write.", show_default=False)],
    trust_code: TrustCodeFlag = False,
) -> None:
    """Write the predictions of a personal model, one line per example.

    Example:

        fedtailor predict my_model --data x.npz --to out.csv
    """
    from fedtailor.personalization.service import predict as compute_predictions
    from fedtailor.personalization.service import write_predictions
    from fedtailor.training.from_config import trust_folder

    if trust_code:
        trust_folder(model)
    predictions = compute_predictions(model, data)
    write_predictions(to, predictions)
    print_text(f"{len(predictions)} predictions are in {format_path(to)}.")


COMMANDS = (personalize, export, predict)
NEED_ARGS = (personalize, export, predict)
