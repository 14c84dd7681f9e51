"""A GradScaler on the device: the step after `load_state_dict` is the program of the first step."""

import torch
from torch import nn

import spmd


def test_loaded_state_is_data() -> None:
    found = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=4.0, growth_interval=2)
        x = torch.linspace(0, 1, 12).view(3, 4).to(device)

        def step() -> float:
            loss = model(x).square().mean()  # noqa: B023
            scaler.scale(loss).backward()  # noqa: B023
            scaler.step(optimizer)  # noqa: B023
            scaler.update()  # noqa: B023
            optimizer.zero_grad()  # noqa: B023
            return loss.item()

        losses = [step() for _ in range(3)]
        state = scaler.state_dict()
        spmd.sync()  # as savers do
        with spmd.no_recompile():
            scaler.load_state_dict(state)
            assert device == "cpu" or spmd.residence(scaler._scale) == "host"
            losses += [step() for _ in range(3)]
        found.append((losses, scaler.get_scale(), scaler._get_growth_tracker()))
    assert found[0][1:] == found[1][1:]
    torch.testing.assert_close(torch.tensor(found[1][0]), torch.tensor(found[0][0]))
