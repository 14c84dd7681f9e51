"""An unmodified classifier of transformers on a batch that the data axis does not divide: loss and
every gradient."""

import copy

import pytest
import torch
from support import check
from transformers import LlamaConfig, LlamaForSequenceClassification

import spmd
from spmd import Mesh, P


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("is_split", [False, True])
def test_thirteen_rows(is_split: bool, partitioner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data x model, the weights whole or split; each sequence is read at its last token."""
    monkeypatch.setattr(spmd.config, "partitioner", partitioner)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_labels": 3, "pad_token_id": 0}
    model = LlamaForSequenceClassification(LlamaConfig(**sizes, **heads))
    ids, labels = torch.randint(1, 64, (13, 9)), torch.randint(3, (13,))
    lengths = torch.randint(2, 10, (13,))
    mask = (torch.arange(9) < lengths[:, None]).long()
    ids = ids * mask
    expected = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    expected.backward()
    mesh = Mesh(range(8), (4, 2), ("data", "model"))
    sharded = copy.deepcopy(model).to("xla")
    sharded.zero_grad()
    for name, weight in sharded.named_parameters():
        if is_split and weight.ndim == 2:
            is_row = name.endswith(("o_proj.weight", "down_proj.weight"))
            spmd.mark_sharding(weight, mesh, P(None, "model") if is_row else P("model", None))
    inputs = [
        spmd.mark_sharding(one.to("xla"), mesh, P("data", *[None] * (one.ndim - 1)))
        for one in (ids, mask, labels)
    ]
    loss = sharded(input_ids=inputs[0], attention_mask=inputs[1], labels=inputs[2]).loss
    loss.backward()
    check(loss, expected)
    grads = {name: weight.grad for name, weight in sharded.named_parameters()}
    for name, weight in model.named_parameters():
        assert weight.grad is not None and grads[name] is not None
        check(grads[name], weight.grad)
