"""A spiral learned by a neural ODE: a Dormand-Prince solver whose host accepts each step, as
torchdiffeq's."""

import bisect
from collections import namedtuple

import torch
from common import flags, placed
from torch import Tensor, nn, optim

Tableau = namedtuple("Tableau", "alpha beta c_sol c_error")
ALPHA = [1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0]
BETA = [
    [1 / 5],
    [3 / 40, 9 / 40],
    [44 / 45, -56 / 15, 32 / 9],
    [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
    [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
    [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
]
C_SOL = [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84, 0]
C_ERROR = [
    35 / 384 - 1951 / 21600,
    0,
    500 / 1113 - 22642 / 50085,
    125 / 192 - 451 / 720,
    -2187 / 6784 + 12231 / 42400,
    11 / 84 - 649 / 6300,
    -1.0 / 60.0,
]
C_MID = [
    6025192743 / 30085553152 / 2,
    0,
    51252292925 / 65400821598 / 2,
    -2691868925 / 45128329728 / 2,
    187940372067 / 1594534317056 / 2,
    -1776094331 / 19743644256 / 2,
    11237099 / 235043384 / 2,
]
RungeKuttaState = namedtuple("RungeKuttaState", "y1 f1 t0 t1 dt interp_coeff")


def rms_norm(tensor: Tensor) -> Tensor:
    return tensor.abs().pow(2).mean().sqrt()


class Dopri5:
    """The fifth-order method of Dormand and Prince with an error estimate and an interpolant of the
    fourth order."""

    def __init__(self, func: nn.Module, y0: Tensor, t: Tensor, rtol: float, atol: float) -> None:
        self.func, self.y0, self.dtype, self.device = func, y0, torch.float64, y0.device
        self.rtol, self.atol = torch.as_tensor(rtol, dtype=torch.float64, device=self.device), atol
        self.safety = torch.as_tensor(0.9, dtype=torch.float64, device=self.device)
        self.ifactor = torch.as_tensor(10.0, dtype=torch.float64, device=self.device)
        self.dfactor = torch.as_tensor(0.2, dtype=torch.float64, device=self.device)
        to = {"dtype": y0.dtype, "device": self.device}
        self.tableau = Tableau(
            torch.tensor(ALPHA, **to),
            [torch.tensor(b, **to) for b in BETA],
            torch.tensor(C_SOL, **to),
            torch.tensor(C_ERROR, **to),
        )
        self.mid = torch.tensor(C_MID, **to)
        self.evaluations = 0

    def evaluate(self, t: Tensor, y: Tensor) -> Tensor:
        self.evaluations += 1
        return self.func(t.to(y.dtype), y)

    def select_initial_step(self, t0: Tensor, f0: Tensor) -> Tensor:
        """The first step's size (Hairer, Norsett, Wanner: Solving Ordinary Differential Equations
        I, II.4)."""
        t0 = t0.to(self.y0.dtype)
        scale = self.atol + torch.abs(self.y0) * self.rtol.to(self.y0.dtype)
        d0, d1 = rms_norm(self.y0 / scale).abs(), rms_norm(f0 / scale).abs()
        if d0 < 1e-5 or d1 < 1e-5:
            h0 = torch.tensor(1e-6, dtype=self.y0.dtype, device=self.device)
        else:
            h0 = 0.01 * d0 / d1
        h0 = h0.abs()
        f1 = self.evaluate(t0 + h0, self.y0 + h0 * f0)
        d2 = torch.abs(rms_norm((f1 - f0) / scale) / h0)
        if d1 <= 1e-15 and d2 <= 1e-15:
            h1 = torch.max(torch.tensor(1e-6, dtype=self.y0.dtype, device=self.device), h0 * 1e-3)
        else:
            h1 = (0.01 / max(d1, d2)) ** (1.0 / 5.0)
        return torch.min(100 * h0, h1.abs()).to(self.dtype)

    def integrate(self, t: Tensor) -> Tensor:
        """The solution at each of these times."""
        solution = torch.empty(len(t), *self.y0.shape, dtype=self.y0.dtype, device=self.device)
        solution[0] = self.y0
        t = t.to(self.dtype)
        f0 = self.evaluate(t[0], self.y0)
        first_step = self.select_initial_step(t[0], f0)
        self.state = RungeKuttaState(self.y0, f0, t[0], t[0], first_step, [self.y0] * 5)
        for i in range(1, len(t)):
            solution[i] = self.advance(t[i])
        return solution

    def advance(self, next_t: Tensor) -> Tensor:
        n_steps = 0
        while next_t > self.state.t1:
            assert n_steps < 1000, f"max_num_steps exceeded ({n_steps}>=1000)"
            self.state = self.adaptive_step(self.state)
            n_steps += 1
        return self.interpolated(self.state, next_t)

    def adaptive_step(self, state: RungeKuttaState) -> RungeKuttaState:
        y0, f0, _, t0, dt, interp_coeff = state
        t1 = t0 + dt
        assert t0 + dt > t0, f"underflow in dt {dt.item()}"
        assert torch.isfinite(y0).all(), f"non-finite values in state `y`: {y0}"
        y1, f1, y1_error, k = self.runge_kutta_step(y0, f0, t0, dt, t1)
        error_tol = self.atol + self.rtol.to(y0.dtype) * torch.max(y0.abs(), y1.abs())
        error_ratio = rms_norm(y1_error / error_tol).abs()
        accept_step = error_ratio <= 1
        if accept_step:
            t_next, y_next, f_next = t1, y1, f1
            interp_coeff = self.interp_fit(y0, y1, k, dt)
        else:
            t_next, y_next, f_next = t0, y0, f0
        dt_next = self.optimal_step_size(dt, error_ratio.to(dt.dtype))
        return RungeKuttaState(y_next, f_next, t0, t_next, dt_next, interp_coeff)

    def runge_kutta_step(
        self, y0: Tensor, f0: Tensor, t0: Tensor, dt: Tensor, t1: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        t0, dt, t1 = t0.to(y0.dtype), dt.to(y0.dtype), t1.to(y0.dtype)
        k = [f0]
        for alpha_i, beta_i in zip(self.tableau.alpha, self.tableau.beta, strict=True):
            ti = t1 if alpha_i == 1.0 else t0 + alpha_i * dt
            yi = y0 + torch.sum(torch.stack(k, dim=-1) * (beta_i * dt), dim=-1).view_as(f0)
            k.append(self.evaluate(ti, yi))
        stacked = torch.stack(k, dim=-1)
        y1_error = torch.sum(stacked * (dt * self.tableau.c_error), dim=-1)
        return yi, k[-1], y1_error, stacked

    def optimal_step_size(self, last_step: Tensor, error_ratio: Tensor) -> Tensor:
        if error_ratio == 0:
            return last_step * self.ifactor
        dfactor = self.dfactor
        if error_ratio < 1:
            dfactor = torch.ones((), dtype=last_step.dtype, device=last_step.device)
        exponent = torch.tensor(5, dtype=last_step.dtype, device=last_step.device).reciprocal()
        factor = torch.min(self.ifactor, torch.max(self.safety / error_ratio**exponent, dfactor))
        return last_step * factor

    def interp_fit(self, y0: Tensor, y1: Tensor, k: Tensor, dt: Tensor) -> list[Tensor]:
        dt = dt.type_as(y0)
        y_mid = y0 + torch.sum(k * (dt * self.mid), dim=-1).view_as(y0)
        f0, f1 = k[..., 0], k[..., -1]
        a = 2 * dt * (f1 - f0) - 8 * (y1 + y0) + 16 * y_mid
        b = dt * (5 * f0 - 3 * f1) + 18 * y0 + 14 * y1 - 32 * y_mid
        c = dt * (f1 - 4 * f0) - 11 * y0 - 5 * y1 + 16 * y_mid
        return [y0, dt * f0, c, b, a]

    def interpolated(self, state: RungeKuttaState, t: Tensor) -> Tensor:
        t0, t1, coefficients = state.t0, state.t1, state.interp_coeff
        assert (t0 <= t) & (t <= t1), (
            f"invalid interpolation, fails `t0 <= t <= t1`: {t0}, {t}, {t1}"
        )
        x = ((t - t0) / (t1 - t0)).to(coefficients[0].dtype)
        total = coefficients[0] + coefficients[1] * x
        x_power = x
        for coefficient in coefficients[2:]:
            x_power = x_power * x
            total = total + coefficient * x_power
        return total


class ODEFunc(nn.Module):
    """The learned derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
        for m in self.net.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, mean=0, std=0.1)
                nn.init.constant_(m.bias, val=0)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.net(y**3)


def main(arguments: list[str] | None = None) -> list[float]:
    """Trains; returns the losses and the number of evaluations of each solve."""
    args = flags(__doc__, 3).parse_args(arguments)
    torch.manual_seed(0)
    times = torch.linspace(0.0, 2.0, 8)
    bisected = bisect.bisect(times.tolist(), 1.0)
    angle = 2 * times.unsqueeze(-1).unsqueeze(-1)
    true_y = torch.exp(-0.1 * angle) * torch.cat(
        [2 * torch.cos(angle), 2 * torch.sin(angle)], dim=-1
    )
    func = placed(ODEFunc(), args)
    optimizer = optim.RMSprop(func.parameters(), lr=1e-2)
    t, true_y = times.to(args.device), true_y.to(args.device)
    figures: list[float] = []
    for itr in range(1, args.steps + 1):
        optimizer.zero_grad()
        solver = Dopri5(func, true_y[0], t[:bisected], rtol=1e-4, atol=1e-5)
        pred_y = solver.integrate(t[:bisected])
        loss = torch.mean(torch.abs(pred_y - true_y[:bisected]))
        loss.backward()
        optimizer.step()
        figures += [loss.item(), float(solver.evaluations)]
        print(f"Iter {itr:04d} | Total Loss {figures[-2]:.6f} | evaluations {solver.evaluations}")
    return figures


if __name__ == "__main__":
    main()
