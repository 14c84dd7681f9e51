"""Twenty steps of the main job, as test_removable.py runs them without packages: a GPT under FSDP
with AdamW."""

import functools

import torch

import fsdp
import spmd
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy


def test_twenty_steps() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 32, (20, 8, 17))
    losses, before = {}, spmd.metrics.num_compiles()
    for device in ("cpu", "xla"):
        torch.manual_seed(1)
        model = GPT(GPTConfig(vocabulary=32, sequence=16, layers=2, heads=2, width=32)).to(device)
        if device == "xla":
            mesh = spmd.Mesh(range(8), (2, 4), ("data", "fsdp"))
            policy = functools.partial(
                fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block}
            )
            model = fsdp.FullyShardedDataParallel(
                model, mesh=mesh, auto_wrap_policy=policy, extra_data_axis="data"
            )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for batch in tokens:
            loss = cross_entropy(model(batch[:, :-1].to(device)), batch[:, 1:].to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.setdefault(device, []).append(loss.item())
    torch.testing.assert_close(losses["xla"], losses["cpu"], rtol=2e-4, atol=2e-4)
    assert spmd.metrics.num_compiles() - before == 1, spmd.metrics.report()
