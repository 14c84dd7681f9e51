"""Proximal policy optimization in one file, as cleanrl's: rollouts into buffers, advantages,
shuffled minibatches."""

import numpy as np
import torch
from common import flags, placed
from reinforcement_learning import CartPole
from torch import Tensor, nn, optim
from torch.distributions.categorical import Categorical


class Envs:
    """Several poles at once, each set upright again when it falls."""

    def __init__(self, count: int, draws: torch.Generator) -> None:
        self.envs, self.draws = [CartPole() for _ in range(count)], draws

    def reset(self) -> np.ndarray:
        return np.stack([env.reset(self.draws).numpy() for env in self.envs])

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        states, rewards, dones = [], [], []
        for env, action in zip(self.envs, actions, strict=True):
            state, reward, done = env.step(int(action))
            states.append((env.reset(self.draws) if done else state).numpy())
            rewards.append(reward)
            dones.append(done)
        return np.stack(states), np.array(rewards), np.array(dones)


def layer_init(layer: nn.Linear, std: float = np.sqrt(2), bias_const: float = 0.0) -> nn.Linear:
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    """An actor and a critic without shared layers."""

    def __init__(self, draws: torch.Generator) -> None:
        super().__init__()
        self.draws = draws
        self.critic = nn.Sequential(
            layer_init(nn.Linear(4, 16)),
            nn.Tanh(),
            layer_init(nn.Linear(16, 16)),
            nn.Tanh(),
            layer_init(nn.Linear(16, 1), std=1.0),
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(4, 16)),
            nn.Tanh(),
            layer_init(nn.Linear(16, 16)),
            nn.Tanh(),
            layer_init(nn.Linear(16, 2), std=0.01),
        )

    def get_value(self, x: Tensor) -> Tensor:
        return self.critic(x)

    def get_action_and_value(
        self, x: Tensor, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        logits = self.actor(x)
        probs = Categorical(logits=logits)
        if action is None:
            # Drawn on the host by a generator of its own, so that every device plays the same game.
            action = torch.multinomial(probs.probs.detach().cpu(), 1, generator=self.draws)[
                :, 0
            ].to(x.device)
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


def main(arguments: list[str] | None = None) -> list[float]:
    """Plays and trains; returns the losses and figures of each iteration."""
    args = flags(__doc__, 3).parse_args(arguments)
    torch.manual_seed(1)
    draws = torch.Generator().manual_seed(1)
    shuffles = np.random.default_rng(1)
    device, num_envs, num_steps = args.device, 4, 16
    batch_size, num_minibatches, update_epochs = num_envs * num_steps, 4, 2
    gamma, gae_lambda, clip_coef, ent_coef, vf_coef = 0.99, 0.95, 0.2, 0.01, 0.5
    envs, agent = Envs(num_envs, draws), placed(Agent(draws), args)
    optimizer = optim.Adam(agent.parameters(), lr=2.5e-3, eps=1e-5)
    obs = torch.zeros((num_steps, num_envs, 4)).to(device)
    actions = torch.zeros((num_steps, num_envs)).to(device)
    logprobs = torch.zeros((num_steps, num_envs)).to(device)
    rewards = torch.zeros((num_steps, num_envs)).to(device)
    dones = torch.zeros((num_steps, num_envs)).to(device)
    values = torch.zeros((num_steps, num_envs)).to(device)
    next_obs = torch.Tensor(envs.reset()).to(device)
    next_done = torch.zeros(num_envs).to(device)
    figures: list[float] = []
    for iteration in range(1, args.steps + 1):
        optimizer.param_groups[0]["lr"] = (1.0 - (iteration - 1.0) / args.steps) * 2.5e-3
        for step in range(num_steps):
            obs[step] = next_obs
            dones[step] = next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
                values[step] = value.flatten()
            actions[step] = action
            logprobs[step] = logprob
            state, reward, done = envs.step(action.cpu().numpy())
            rewards[step] = torch.tensor(reward).to(device).view(-1)
            next_obs, next_done = torch.Tensor(state).to(device), torch.Tensor(done).to(device)
        with torch.no_grad():
            next_value = agent.get_value(next_obs).reshape(1, -1)
            advantages = torch.zeros_like(rewards).to(device)
            lastgaelam = 0
            for t in reversed(range(num_steps)):
                if t == num_steps - 1:
                    nextnonterminal, nextvalues = 1.0 - next_done, next_value
                else:
                    nextnonterminal, nextvalues = 1.0 - dones[t + 1], values[t + 1]
                delta = rewards[t] + gamma * nextvalues * nextnonterminal - values[t]
                advantages[t] = lastgaelam = (
                    delta + gamma * gae_lambda * nextnonterminal * lastgaelam
                )
            returns = advantages + values
        b_obs, b_logprobs, b_actions = (
            obs.reshape((-1, 4)),
            logprobs.reshape(-1),
            actions.reshape(-1),
        )
        b_advantages, b_returns, b_values = (
            advantages.reshape(-1),
            returns.reshape(-1),
            values.reshape(-1),
        )
        b_inds = np.arange(batch_size)
        clipfracs = []
        for _ in range(update_epochs):
            shuffles.shuffle(b_inds)
            for start in range(0, batch_size, batch_size // num_minibatches):
                mb_inds = b_inds[start : start + batch_size // num_minibatches]
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                    b_obs[mb_inds], b_actions.long()[mb_inds]
                )
                logratio = newlogprob - b_logprobs[mb_inds]
                ratio = logratio.exp()
                with torch.no_grad():
                    old_approx_kl = (-logratio).mean()
                    approx_kl = ((ratio - 1) - logratio).mean()
                    clipfracs += [((ratio - 1.0).abs() > clip_coef).float().mean().item()]
                mb_advantages = b_advantages[mb_inds]
                mb_advantages = (mb_advantages - mb_advantages.mean()) / (
                    mb_advantages.std() + 1e-8
                )
                pg_loss1 = -mb_advantages * ratio
                pg_loss2 = -mb_advantages * torch.clamp(ratio, 1 - clip_coef, 1 + clip_coef)
                pg_loss = torch.max(pg_loss1, pg_loss2).mean()
                newvalue = newvalue.view(-1)
                v_loss_unclipped = (newvalue - b_returns[mb_inds]) ** 2
                v_clipped = b_values[mb_inds] + torch.clamp(
                    newvalue - b_values[mb_inds], -clip_coef, clip_coef
                )
                v_loss_clipped = (v_clipped - b_returns[mb_inds]) ** 2
                v_loss = 0.5 * torch.max(v_loss_unclipped, v_loss_clipped).mean()
                entropy_loss = entropy.mean()
                loss = pg_loss - ent_coef * entropy_loss + v_loss * vf_coef
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        y_pred, y_true = b_values.cpu().numpy(), b_returns.cpu().numpy()
        var_y = np.var(y_true)
        explained_var = np.nan if var_y == 0 else 1 - np.var(y_true - y_pred) / var_y
        figures += [
            v_loss.item(),
            pg_loss.item(),
            entropy_loss.item(),
            old_approx_kl.item(),
            approx_kl.item(),
        ]
        figures += [float(np.mean(clipfracs)), float(explained_var)]
        print(f"iteration {iteration} value_loss {figures[-7]:.4f} policy_loss {figures[-6]:.4f}")
    return figures


if __name__ == "__main__":
    main()
