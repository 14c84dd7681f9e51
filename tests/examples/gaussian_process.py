"""An exact Gaussian process fitted by SciPy's L-BFGS-B, as botorch does, and asked for a candidate.

The closure copies SciPy's vector into the parameters and reads the value and each gradient back;
the Cholesky factor is checked by the host, as gpytorch's `psd_safe_cholesky` does.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from common import flags, placed
from scipy.optimize import minimize
from torch import Tensor, nn


def psd_safe_cholesky(A: Tensor) -> Tensor:
    """Adds a jitter, ten times larger at each try, until the factor exists."""
    L, info = torch.linalg.cholesky_ex(A)
    if not torch.any(info):
        return L
    isnan = torch.isnan(A)
    if isnan.any():
        raise ValueError(f"cholesky: {isnan.sum().item()} of {A.numel()} elements are NaN")
    for i in range(3):
        jitter = 1e-6 * 10**i
        L, info = torch.linalg.cholesky_ex(
            A + jitter * torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        )
        if not torch.any(info):
            return L
    raise ValueError("the matrix is not positive definite")


class MaternKernel(nn.Module):
    """A Matern 5/2 kernel with a length scale per dimension."""

    def __init__(self, num_dims: int) -> None:
        super().__init__()
        self.raw_lengthscale = nn.Parameter(torch.zeros(1, num_dims, dtype=torch.double))
        self.raw_outputscale = nn.Parameter(torch.zeros((), dtype=torch.double))

    @property
    def lengthscale(self) -> Tensor:
        return F.softplus(self.raw_lengthscale)

    @property
    def outputscale(self) -> Tensor:
        return F.softplus(self.raw_outputscale)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        mean = x1.mean(dim=-2, keepdim=True)
        x1, x2 = (x1 - mean) / self.lengthscale, (x2 - mean) / self.lengthscale
        squared = (
            x1.square().sum(-1, keepdim=True)
            - 2.0 * x1 @ x2.transpose(-2, -1)
            + x2.square().sum(-1).unsqueeze(-2)
        )
        distance = squared.clamp_min(1e-15).sqrt()
        exp_component = torch.exp(-math.sqrt(5) * distance)
        constant = (math.sqrt(5) * distance).add(1).add(5.0 / 3.0 * distance**2)
        return self.outputscale * constant * exp_component


class SingleTaskGP(nn.Module):
    """A constant mean, a scaled Matern kernel, noise; priors on length scales and noise."""

    def __init__(self, train_X: Tensor, train_Y: Tensor) -> None:
        super().__init__()
        check_scaling(train_X, train_Y)
        self.register_buffer("train_inputs", train_X)
        self.register_buffer("train_targets", train_Y.squeeze(-1))
        self.mean_constant = nn.Parameter(torch.zeros((), dtype=torch.double))
        self.raw_noise = nn.Parameter(torch.full((1,), -2.0, dtype=torch.double))
        self.covar_module = MaternKernel(train_X.shape[-1])

    def noise(self) -> Tensor:
        return F.softplus(self.raw_noise) + 1e-4

    def covariance(self) -> Tensor:
        K = self.covar_module(self.train_inputs, self.train_inputs)
        return K + self.noise() * torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)

    def posterior(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance at X, with the factor of the training data in the cache that the
        evaluation fills."""
        if getattr(self, "cache", None) is None:
            L = psd_safe_cholesky(self.covariance())
            residual = (self.train_targets - self.mean_constant).unsqueeze(-1)
            self.cache = L.detach(), torch.cholesky_solve(residual, L).detach()
        L, alpha = self.cache
        k = self.covar_module(X, self.train_inputs)
        mean = self.mean_constant + (k @ alpha).squeeze(-1)
        v = torch.linalg.solve_triangular(L, k.transpose(-2, -1), upper=False)
        return mean, (self.covar_module.outputscale - v.square().sum(-2)).clamp_min(1e-9)


def check_scaling(train_X: Tensor, train_Y: Tensor) -> None:
    """Refuses NaN, warns of inputs outside of the unit cube and of targets that are not
    standardized."""
    for tensor in (train_X, train_Y):
        if torch.isnan(tensor).any():
            raise ValueError("the training data has NaN")
    lowest, highest = train_X.min(dim=-2)[0], train_X.max(dim=-2)[0]
    if (lowest < 0).any() or (highest > 1).any():
        print("data is not in the unit cube")
    mean, std = train_Y.mean(dim=-2), train_Y.std(dim=-2)
    if mean.abs().max() > 1e-2 or (std - 1).abs().max() > 1e-2:
        print("data is not standardized")


def log_prior(value: Tensor, loc: float, scale: float) -> Tensor:
    """The log density of a log-normal prior."""
    return (
        -((value.log() - loc) ** 2) / (2 * scale**2)
        - value.log()
        - math.log(scale * math.sqrt(2 * math.pi))
    ).sum()


def marginal_log_likelihood(model: SingleTaskGP) -> Tensor:
    """The exact marginal log likelihood with its priors, per data point."""
    L = psd_safe_cholesky(model.covariance())
    residual = (model.train_targets - model.mean_constant).unsqueeze(-1)
    inv_quad = (residual * torch.cholesky_solve(residual, L)).sum()
    logdet = 2 * L.diagonal().log().sum()
    n = residual.shape[0]
    res = -0.5 * (inv_quad + logdet + n * math.log(2 * math.pi))
    res = res.add(
        log_prior(model.covar_module.lengthscale, math.sqrt(2) + math.log(2) / 2, math.sqrt(3))
    )
    res = res.add(log_prior(model.noise(), -4.0, 1.0))
    return res.div(n)


def get_vector(parameters: list[nn.Parameter]) -> np.ndarray:
    return np.concatenate([p.detach().reshape(-1).cpu().numpy() for p in parameters])


@torch.no_grad()
def set_vector(parameters: list[nn.Parameter], vector: np.ndarray) -> None:
    index = 0
    for p in parameters:
        numel = p.numel()
        p.copy_(
            torch.as_tensor(vector[index : index + numel], dtype=p.dtype, device=p.device).view_as(
                p
            )
        )
        index += numel


def fit(model: SingleTaskGP, steps: int) -> list[float]:
    """L-BFGS-B over the vector of all parameters; returns the value of each call of the closure."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    values: list[float] = []

    def closure(vector: np.ndarray) -> tuple[float, np.ndarray]:
        set_vector(parameters, vector)
        model.zero_grad()
        loss = -marginal_log_likelihood(model)
        loss.sum().backward()
        value = loss.detach().cpu().numpy()
        grad = np.concatenate([p.grad.reshape(-1).cpu().numpy() for p in parameters])
        if np.isnan(grad).any():
            raise RuntimeError(f"{np.isnan(grad).sum()} elements of the gradient are NaN")
        values.append(float(value))
        return float(value), grad

    result = minimize(
        closure, get_vector(parameters), jac=True, method="L-BFGS-B", options={"maxiter": steps}
    )
    set_vector(parameters, result.x)
    return values


def candidate(
    model: SingleTaskGP, start: Tensor, best: Tensor, steps: int
) -> tuple[np.ndarray, list[float]]:
    """The point of the largest expected improvement from these starts, by L-BFGS-B within the unit
    cube."""
    values: list[float] = []

    def closure(x: np.ndarray) -> tuple[float, np.ndarray]:
        X = torch.from_numpy(x).to(start).view(start.shape).contiguous().requires_grad_(True)
        mean, variance = model.posterior(X)
        sigma = variance.sqrt()
        u = (mean - best) / sigma
        density = torch.exp(-0.5 * u.square()) / math.sqrt(2 * math.pi)
        improvement = sigma * (density + u * 0.5 * torch.erfc(-u / math.sqrt(2)))
        loss = -improvement.sum()
        grad = torch.autograd.grad(loss, X)[0].contiguous().view(-1).cpu().detach().numpy()
        values.append(loss.item())
        return values[-1], grad

    bounds = [(0.0, 1.0)] * start.numel()
    x0 = start.reshape(-1).cpu().numpy()
    result = minimize(
        closure, x0, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": steps}
    )
    return result.x, values


def main(arguments: list[str] | None = None) -> list[float]:
    """Fits and asks for a candidate; returns the values of all calls of both closures, parameters
    and candidate."""
    args = flags(__doc__, 6).parse_args(arguments)
    torch.manual_seed(0)
    train_X = torch.rand(20, 3, dtype=torch.double)
    train_Y = (
        torch.sin(6 * train_X[:, :1])
        + train_X[:, 1:2] ** 2
        + 0.1 * torch.randn(20, 1, dtype=torch.double)
    )
    train_Y = (train_Y - train_Y.mean()) / train_Y.std()
    start = torch.rand(4, 3, dtype=torch.double).to(args.device)
    model = placed(SingleTaskGP(train_X.to(args.device), train_Y.to(args.device)), args)
    values = fit(model, args.steps)
    parameters = get_vector(list(model.parameters()))
    model.eval()
    best = model.train_targets.mean()
    point, improvements = candidate(model, start, best, args.steps)
    print(f"-mll {values[0]:.4f} -> {values[-1]:.4f}; expected improvement {-improvements[-1]:.4f}")
    return [*values, *parameters.tolist(), *improvements, *point.tolist()]


if __name__ == "__main__":
    main()
