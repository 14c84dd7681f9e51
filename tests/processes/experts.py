"""A program of `test_experts.py`'s processes:
`python experts.py INDEX COUNT PORT EXCHANGE MESH`."""

import json
import sys

import torch
import transformers
from torch import nn

import fsdp  # noqa: F401  carries out the units of the rules
import spmd
from spmd import P

VOCABULARY = 64
CONFIG = transformers.MixtralConfig(
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=4,
    num_hidden_layers=2,
    num_local_experts=8,
    num_experts_per_tok=2,
    vocab_size=VOCABULARY,
    use_cache=False,
)
TOKENS = torch.randint(VOCABULARY, (2, 8, 16), generator=torch.Generator().manual_seed(3))
# The experts are over both processes, or each process has all of them.
MESHES = {"expert": (1, 8), "fsdp and expert": (2, 4)}


class Training:
    """Clipped steps of a small model with experts; each process has its part of the batch."""

    def __init__(self, exchange: str, mesh: str) -> None:
        spmd.config.parallel = exchange
        self.mesh = spmd.Mesh(spmd.device_ids(), MESHES[mesh], ("fsdp", "expert"))
        torch.manual_seed(0)
        CONFIG._experts_implementation = "grouped_mm"
        self.model = transformers.MixtralForCausalLM(CONFIG).double().to("xla")
        rules = spmd.ShardingRules(
            {"**.experts.*": P("expert", None, None)},
            units=["model.layers.*"],
            extra_data_axis="expert",
        )
        rules.apply(self.model, self.mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def numbers(self) -> list[float]:
        """The loss and the norm of each of two steps."""
        found = []
        for batch in TOKENS:
            part = batch.chunk(spmd.process_count())[spmd.process_index()]
            ids = spmd.from_process_local(part.contiguous(), self.mesh, P(("fsdp", "expert"), None))
            loss = self.model(input_ids=ids, labels=ids).loss
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.optimizer.step()
            self.optimizer.zero_grad()
            found += [loss.item(), float(norm)]
        return found


if __name__ == "__main__":
    place, count, port, exchange, mesh = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    spmd.initialize(
        f"127.0.0.1:{port}",
        count,
        place,
        local_device_count=8 // count,
        heartbeat_timeout_seconds=10,
    )
    numbers = Training(exchange, mesh).numbers()
    print(
        json.dumps(
            {"numbers": numbers, "exchanges": dict(spmd.metrics.compiles()[-1].passes)["exchange"]}
        )
    )
