"""Methods of federated learning as plain loops, written from their papers in plain torch.

Nothing of this project is used here. A model is one vector of weights, so every method reads like
its pseudocode; `Problem` puts the vector into an `nn.Module` and differentiates by autograd. Who
takes part in a round, and which examples are in which batch, is handed in.

    loop = FedAvg(problem, start, shares, Settings(lr=0.1))
    loop.train({client: phases, ...})       one round
    loop.predictor(client, phases)          the weights that predict for a client
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.nn.utils import parameters_to_vector, vector_to_parameters

Step = tuple[Tensor, ...]
"""The rows of the examples in each batch of a step."""

Phases = Sequence[Sequence[Step]]
"""The steps of each phase of a client's work."""

Cohort = Mapping[int, Phases]
"""The clients of a round, with their work."""

SCORED_AT_ONCE = 2048
"""Number of examples that are predicted at a time."""


@dataclass(frozen=True)
class Settings:
    """Numbers of all methods, by their symbols in the papers; each method reads its own."""

    lr: float  # step size of the clients
    lam: float = 0.0  # strength of a proximal term: FedProx, Ditto, pFedMe
    alpha: float = 0.0  # inner step size of Per-FedAvg; APFL: the first share of the personal model
    inner_lr: float = 0.0  # step size of theta in pFedMe
    inner_steps: int = 0  # K of pFedMe


class Problem:
    """The loss of a model on some examples, as a function of its weights.

    Args:
        model: The network; its last layer is the head.
        x: Inputs of all examples, as they are stored.
        y: Their labels.
        scale: Factor of the inputs.
    """

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, scale: float = 1.0) -> None:
        self._model = model
        self._params = list(model.parameters())
        self._x = x
        self._y = y
        self._scale = scale
        head = list(list(model.children())[-1].parameters())
        num_head_weights = sum(param.numel() for param in head)
        num_weights = sum(param.numel() for param in self._params)
        self.base = slice(0, num_weights - num_head_weights)
        self.head = slice(num_weights - num_head_weights, num_weights)

    def gradient(self, weights: Tensor, rows: Tensor) -> Tensor:
        """Return the gradient of the mean loss over some examples."""
        self._model.train()
        outputs = self._compute_outputs(weights, rows)
        loss = nnf.cross_entropy(outputs, self._y[rows])
        return parameters_to_vector(torch.autograd.grad(loss, self._params))

    @torch.no_grad()
    def count_hits(self, weights: Tensor, rows: Tensor) -> int:
        """Return how many of some examples are classified correctly."""
        self._model.eval()
        hits = 0
        for some in torch.split(rows, SCORED_AT_ONCE):
            outputs = self._compute_outputs(weights, some)
            hits += int((outputs.argmax(1) == self._y[some]).sum())
        return hits

    def _compute_outputs(self, weights: Tensor, rows: Tensor) -> Tensor:
        with torch.no_grad():
            vector_to_parameters(weights, self._params)
        x = self._x[rows].to(weights.dtype) * self._scale
        outputs: Tensor = self._model(x)
        return outputs


@dataclass
class FedAvg:
    """McMahan et al., AISTATS 2017: E epochs of SGD from w, and the mean of the models."""

    problem: Problem
    w: Tensor  # the server's model
    shares: Mapping[int, float]  # the weight of each client in means
    settings: Settings

    def train(self, cohort: Cohort) -> None:
        """Train one round."""
        models = {client: self.train_client(client, work) for client, work in cohort.items()}
        self.w = self.average(models)

    def train_client(self, client: int, work: Phases) -> Tensor:
        """Return the client's model after its steps."""
        model = self.w
        for (rows,) in work[0]:
            model = model - self.settings.lr * self.problem.gradient(model, rows)
        return model

    def average(self, models: Mapping[int, Tensor]) -> Tensor:
        """Return the weighted mean of the clients' vectors."""
        total = sum(self.shares[client] for client in models)
        weighted = [self.shares[client] / total * model for client, model in models.items()]
        return torch.stack(weighted).sum(0)

    def predictor(self, client: int, work: Phases) -> Tensor:
        """Return the weights that predict for a client.

        Args:
            client: The client.
            work: The steps of its personalization.
        """
        return self.w


@dataclass
class FedProx(FedAvg):
    """Li et al., MLSys 2020, algorithm 2: the local objective is F_k(w) + mu/2 |w - w^t|^2."""

    def train_client(self, client: int, work: Phases) -> Tensor:
        model = self.w
        for (rows,) in work[0]:
            gradient = self.problem.gradient(model, rows) + self.settings.lam * (model - self.w)
            model = model - self.settings.lr * gradient
        return model


@dataclass
class PerFedAvg(FedAvg):
    """Fallah et al., NeurIPS 2020, algorithm 1, first-order: the Hessian's term is left out."""

    def train_client(self, client: int, work: Phases) -> Tensor:
        model = self.w
        for step in work[0]:
            inner_rows = step[0]
            outer_rows = step[-1]
            ahead = model - self.settings.alpha * self.problem.gradient(model, inner_rows)
            model = model - self.settings.lr * self.problem.gradient(ahead, outer_rows)
        return model

    def predictor(self, client: int, work: Phases) -> Tensor:
        model = self.w
        for (rows,) in work[0]:
            model = model - self.settings.alpha * self.problem.gradient(model, rows)
        return model


@dataclass
class Scaffold(FedAvg):
    """Karimireddy et al., ICML 2020, algorithm 1 with option II."""

    control: Tensor = field(init=False)  # c
    controls: dict[int, Tensor] = field(default_factory=dict)  # c_i

    def __post_init__(self) -> None:
        self.control = torch.zeros_like(self.w)

    def train(self, cohort: Cohort) -> None:
        models: dict[int, Tensor] = {}
        changes: dict[int, Tensor] = {}
        for client, work in cohort.items():
            old = self.controls.get(client, torch.zeros_like(self.w))
            model = self.w
            for (rows,) in work[0]:
                gradient = self.problem.gradient(model, rows) - old + self.control
                model = model - self.settings.lr * gradient
            new = old - self.control + (self.w - model) / (len(work[0]) * self.settings.lr)
            models[client] = model
            changes[client] = new - old
            self.controls[client] = new
        self.w = self.average(models)
        self.control = self.control + len(cohort) / len(self.shares) * self.average(changes)


@dataclass
class Ditto(FedAvg):
    """Li et al., ICML 2021, algorithm 1: personal models near the w that was sent."""

    personal: dict[int, Tensor] = field(default_factory=dict)  # v_i

    def train_client(self, client: int, work: Phases) -> Tensor:
        v = self.personal.get(client, self.w)
        for (rows,) in work[1]:
            gradient = self.problem.gradient(v, rows) + self.settings.lam * (v - self.w)
            v = v - self.settings.lr * gradient
        self.personal[client] = v
        return super().train_client(client, work)

    def predictor(self, client: int, work: Phases) -> Tensor:
        return self.personal.get(client, self.w)


@dataclass
class APFL(FedAvg):
    """Deng et al., 2020 (arXiv 2003.13461), algorithm 1, alpha by equation 10 once a round."""

    personal: dict[int, Tensor] = field(default_factory=dict)  # v_i
    shares_of_personal: dict[int, Tensor] = field(default_factory=dict)  # alpha_i

    def train_client(self, client: int, work: Phases) -> Tensor:
        lr = self.settings.lr
        model = self.w
        v = self.personal.get(client, self.w)
        alpha = self._get_alpha(client)
        for index, (rows,) in enumerate(work[0]):
            mixture_gradient = self.problem.gradient(alpha * v + (1 - alpha) * model, rows)
            model_gradient = self.problem.gradient(model, rows)
            new_alpha = alpha
            if index == 0:
                new_alpha = (alpha - lr * (v - model) @ mixture_gradient).clamp(0, 1)
            v = v - lr * alpha * mixture_gradient
            model = model - lr * model_gradient
            alpha = new_alpha
        self.personal[client] = v
        self.shares_of_personal[client] = alpha
        return model

    def predictor(self, client: int, work: Phases) -> Tensor:
        alpha = self._get_alpha(client)
        v = self.personal.get(client, self.w)
        return alpha * v + (1 - alpha) * self.w

    def _get_alpha(self, client: int) -> Tensor:
        first = torch.full_like(self.w[0], self.settings.alpha)
        return self.shares_of_personal.get(client, first)


@dataclass
class PersonalPart(FedAvg):
    """Base of methods that share a part of the model and keep the rest at the client."""

    kept: dict[int, Tensor] = field(default_factory=dict)  # the models that clients have

    @property
    def shared(self) -> slice:
        """The weights that travel."""
        return self.problem.base

    def assemble(self, client: int) -> Tensor:
        """Return the shared part with the client's own rest."""
        model = self.kept.get(client, self.w).clone()
        model[self.shared] = self.w[self.shared]
        return model

    def train_client(self, client: int, work: Phases) -> Tensor:
        model = self.assemble(client)
        for (rows,) in work[0]:
            model = model - self.settings.lr * self.problem.gradient(model, rows)
        self.kept[client] = model
        return model

    def average(self, models: Mapping[int, Tensor]) -> Tensor:
        mean = super().average(models)
        w = self.w.clone()
        w[self.shared] = mean[self.shared]
        return w

    def predictor(self, client: int, work: Phases) -> Tensor:
        return self.assemble(client)


@dataclass
class FedPer(PersonalPart):
    """Arivazhagan et al., 2019 (arXiv 1912.00818): heads stay, base and head train together."""


@dataclass
class LGFedAvg(PersonalPart):
    """Liang et al., 2020 (arXiv 2001.01523): the head travels, representations stay."""

    @property
    def shared(self) -> slice:
        return self.problem.head


@dataclass
class FedRep(PersonalPart):
    """Collins et al., ICML 2021, algorithm 1: the head first, then the base under that head."""

    def train_client(self, client: int, work: Phases) -> Tensor:
        model = self.assemble(client)
        head = self.problem.head
        base = self.problem.base
        for (rows,) in work[0]:
            gradient = self.problem.gradient(model, rows)
            model = model.clone()
            model[head] -= self.settings.lr * gradient[head]
        for (rows,) in work[1]:
            gradient = self.problem.gradient(model, rows)
            model = model.clone()
            model[base] -= self.settings.lr * gradient[base]
        self.kept[client] = model
        return model


@dataclass
class PFedMe(FedAvg):
    """Dinh et al., NeurIPS 2020, algorithm 1: K steps towards theta(w_i), then one step of w_i."""

    personal: dict[int, Tensor] = field(default_factory=dict)  # theta_i

    def train_client(self, client: int, work: Phases) -> Tensor:
        settings = self.settings
        model = self.w
        theta = self.w
        for (rows,) in work[0]:
            for _ in range(settings.inner_steps):
                gradient = self.problem.gradient(theta, rows) + settings.lam * (theta - model)
                theta = theta - settings.inner_lr * gradient
            model = model - settings.lr * settings.lam * (model - theta)
        self.personal[client] = theta
        return model

    def predictor(self, client: int, work: Phases) -> Tensor:
        return self.personal.get(client, self.w)


@dataclass
class PFedMeScoredAtW(PFedMe):
    """pFedMe whose clients predict with the w_i that they send, as PFLlib scores it."""

    def train_client(self, client: int, work: Phases) -> Tensor:
        model = super().train_client(client, work)
        self.personal[client] = model
        return model


@dataclass
class Local(FedAvg):
    """Training alone: a client goes on with its own model in every round, and nothing travels."""

    personal: dict[int, Tensor] = field(default_factory=dict)

    def train(self, cohort: Cohort) -> None:
        for client, work in cohort.items():
            model = self.personal.get(client, self.w)
            for (rows,) in work[0]:
                model = model - self.settings.lr * self.problem.gradient(model, rows)
            self.personal[client] = model

    def predictor(self, client: int, work: Phases) -> Tensor:
        return self.personal.get(client, self.w)


LOOPS: dict[str, type[FedAvg]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "per-fedavg": PerFedAvg,
    "pfedme": PFedMe,
    "ditto": Ditto,
    "apfl": APFL,
    "fedper": FedPer,
    "fedrep": FedRep,
    "lg-fedavg": LGFedAvg,
    "local": Local,
}
"""The loop of each method, by the method's name."""
