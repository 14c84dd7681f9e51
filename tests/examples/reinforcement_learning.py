"""A pole balanced by policy gradients, REINFORCE or actor and critic, as pytorch/examples'
reinforcement_learning."""

import math
from collections import deque

import torch
import torch.nn.functional as F
from common import flags, placed
from torch import Tensor, nn, optim
from torch.distributions import Categorical


class CartPole:
    """The classic problem's equations of motion (Barto, Sutton, Anderson 1983); the state is four
    numbers."""

    def reset(self, generator: torch.Generator) -> Tensor:
        self.state = (torch.rand(4, generator=generator) * 0.1 - 0.05).tolist()
        return torch.tensor(self.state)

    def step(self, action: int) -> tuple[Tensor, float, bool]:
        x, x_dot, theta, theta_dot = self.state
        force = 10.0 if action == 1 else -10.0
        temp = (force + 0.05 * theta_dot**2 * math.sin(theta)) / 1.1
        theta_acc = (9.8 * math.sin(theta) - math.cos(theta) * temp) / (
            0.5 * (4 / 3 - 0.1 * math.cos(theta) ** 2 / 1.1)
        )
        x_acc = temp - 0.05 * theta_acc * math.cos(theta) / 1.1
        self.state = [
            x + 0.02 * x_dot,
            x_dot + 0.02 * x_acc,
            theta + 0.02 * theta_dot,
            theta_dot + 0.02 * theta_acc,
        ]
        return (
            torch.tensor(self.state),
            1.0,
            abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.2095,
        )


class Policy(nn.Module):
    """Probabilities of the actions, and the state's value for an actor with a critic."""

    def __init__(self, critic: bool) -> None:
        super().__init__()
        self.affine1, self.action_head = nn.Linear(4, 32), nn.Linear(32, 2)
        self.value_head = nn.Linear(32, 1) if critic else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        x = F.relu(self.affine1(x))
        value = None if self.value_head is None else self.value_head(x)
        return F.softmax(self.action_head(x), dim=-1), value


def main(arguments: list[str] | None = None) -> list[float]:
    """Plays and trains; returns the lengths of the episodes and the losses."""
    parser = flags(__doc__, 5)
    parser.add_argument("--critic", action="store_true")
    args = parser.parse_args(arguments)
    torch.manual_seed(543)
    draws = torch.Generator().manual_seed(543)
    env, policy = CartPole(), placed(Policy(args.critic), args)
    optimizer = optim.Adam(policy.parameters(), lr=3e-2 if args.critic else 1e-2)
    eps, figures, running_reward = 1e-6, [], 10.0
    for episode in range(args.steps):
        state, saved, rewards = env.reset(draws), [], []
        for _ in range(1, 60):
            probs, value = policy(state.to(args.device).unsqueeze(0))
            # The action is drawn on the host by a generator of its own, so that every device plays
            # the same game.
            action = torch.multinomial(probs.detach().cpu(), 1, generator=draws)[0].to(args.device)
            saved.append((Categorical(probs).log_prob(action), value))
            state, reward, done = env.step(action.item())
            rewards.append(reward)
            if done:
                break
        running_reward = 0.05 * len(rewards) + 0.95 * running_reward
        total, returns = 0.0, deque()
        for r in rewards[::-1]:
            total = r + 0.99 * total
            returns.appendleft(total)
        returns = torch.tensor(returns)
        returns = (returns - returns.mean()) / (returns.std() + eps)
        policy_losses, value_losses = [], []
        for (log_prob, value), R in zip(saved, returns, strict=True):
            advantage = R if value is None else R - value.item()
            policy_losses.append(-log_prob * advantage)
            if value is not None:
                value_losses.append(
                    F.smooth_l1_loss(value.view(1), torch.tensor([R]).to(args.device))
                )
        optimizer.zero_grad()
        loss = torch.cat(policy_losses).sum()
        if value_losses:
            loss = loss + torch.stack(value_losses).sum()
        loss.backward()
        optimizer.step()
        figures += [len(rewards), loss.item()]
        print(f"Episode {episode} Last reward: {len(rewards)} Average reward: {running_reward:.2f}")
    return figures


if __name__ == "__main__":
    main()
