"""Limits and costs of units are said: by a line, an error that names what serves, or the right
dim."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp import FullyShardedDataParallel as TorchFSDP

import fsdp
import spmd
from spmd import P


@pytest.fixture(autouse=True)
def unsaid() -> Iterator[None]:
    spmd.mesh.notes.say_once.cache_clear()
    spmd.mesh.notes.note_whole.cache_clear()
    yield


class TestNames:
    """Every public method of torch's two FSDPs is here, or its error says what serves."""

    @staticmethod
    def names(kind: type) -> list[str]:
        return [name for name in vars(kind) if not name.startswith("_")]

    def test_of_fully_shard(self, mesh8: spmd.Mesh) -> None:
        model: Any = fsdp.fully_shard(nn.Linear(8, 8), mesh=mesh8)
        assert [name for name in self.names(FSDPModule) if not hasattr(model, name)] == []
        with pytest.raises(
            NotImplementedError,
            match=r"register_post_accumulate_grad_hook gets each reduced gradient",
        ):
            model.set_all_reduce_hook(lambda grad: grad)

    def test_of_the_wrapper(self, mesh8: spmd.Mesh) -> None:
        model = fsdp.FullyShardedDataParallel(nn.Linear(8, 8), mesh8)
        lacking = [
            name
            for name in self.names(TorchFSDP) + self.names(FSDPModule)
            if not hasattr(model, name)
        ]
        assert {"register_comm_hook", "set_all_reduce_hook", "optim_state_dict", "unshard"} <= set(
            lacking
        )
        for name in lacking:
            with pytest.raises(
                AttributeError, match=rf"FullyShardedDataParallel has no {name}: \w+"
            ):
                getattr(model, name)
        with pytest.raises(AttributeError, match="'Linear' object has no attribute 'nothing'"):
            model.nothing  # noqa: B018

    def test_a_model_with_such_a_method(self, mesh8: spmd.Mesh) -> None:
        class Hooked(nn.Linear):
            def register_comm_hook(self) -> int:
                return 3

        assert fsdp.FullyShardedDataParallel(Hooked(8, 8), mesh8).register_comm_hook() == 3


class TestAppended:
    """A layer that is added to a wrapped model is whole on each device, which is said."""

    def test_a_graph_in_which_a_module_is_set(self, mesh8: spmd.Mesh) -> None:
        """The hook is one of all modules: Dynamo meets it in models that know no FSDP."""

        class Setting(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(8, 8)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.last = self.layer
                return self.layer(x)

        fsdp.fully_shard(nn.Linear(8, 8).to("xla"), mesh=mesh8)
        model, x = Setting().to("xla"), torch.randn(2, 8)
        result = torch.compile(model, fullgraph=True)(x.to("xla"))
        torch.testing.assert_close(result.cpu(), copy.deepcopy(model).cpu()(x))

    def test_line(self, mesh8: spmd.Mesh, capsys: pytest.CaptureFixture[str]) -> None:
        model = nn.Sequential(nn.Sequential(nn.Linear(8, 8)))
        fsdp.fully_shard(model, mesh=mesh8)
        model[0].append(nn.ReLU())
        model.append(fsdp.fully_shard(nn.Linear(8, 8), mesh=mesh8))
        assert "stays whole" not in capsys.readouterr().err
        model[0].append(nn.Linear(8, 8))
        assert (
            "fsdp: Linear '2', added to a wrapped Sequential, stays whole"
            in capsys.readouterr().err
        )

    def test_before_the_wrap(self, mesh8: spmd.Mesh, capsys: pytest.CaptureFixture[str]) -> None:
        model = nn.Sequential(fsdp.fully_shard(nn.Linear(8, 8), mesh=mesh8))
        model.append(nn.Linear(8, 8))
        fsdp.fully_shard(model, mesh=mesh8)
        assert "stays whole" not in capsys.readouterr().err


class TestLeftAndBack:
    """Marks of parameters come back with a module that has been on the CPU."""

    def test_marks(self, mesh8: spmd.Mesh) -> None:
        layer = nn.Linear(64, 64).to("xla")
        spmd.mark_sharding(layer.weight, mesh8, P("fsdp", None))
        weight = layer.weight.detach().cpu()
        layer.cpu()
        layer.to("xla")
        layer(torch.ones(8, 64, device="xla")).sum().backward()
        assert layer.weight.grad is not None
        for tensor in (layer.weight, layer.weight.grad):
            assert spmd.get_sharding(tensor).partition_spec(2) == P("fsdp", None)
        assert spmd.get_sharding(layer.bias) is None
        torch.testing.assert_close(layer.weight.detach().cpu(), weight, rtol=0, atol=0)
        assert "_" not in "".join(vars(layer.cpu().weight))  # nothing for a file


TIME, BATCH = 5, 16


def sequence(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "Transformer":
        return nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0), 1, enable_nested_tensor=False
        )
    return (
        nn.MultiheadAttention(16, 2) if kind == "MultiheadAttention" else getattr(nn, kind)(16, 16)
    )


def output_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    inputs = (x, x, x) if isinstance(model, nn.MultiheadAttention) else (x,)
    result = model(*inputs)
    return result if isinstance(result, torch.Tensor) else result[0]


class TestTimeFirst:
    """Dim 1 of torch's time-first modules is the batch; of a model around one it is asked for."""

    @pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "MultiheadAttention", "Transformer"])
    @pytest.mark.parametrize("time", [TIME, 8])
    def test_values(
        self, kind: str, time: int, mesh8: spmd.Mesh, capsys: pytest.CaptureFixture[str]
    ) -> None:
        plain, x = sequence(kind), torch.randn(time, BATCH, 16)
        model = fsdp.fully_shard(copy.deepcopy(plain), mesh=mesh8)
        uploaded = x.to("xla")
        output = output_of(model, uploaded)
        output.square().sum().backward()
        expected = output_of(plain, x)
        expected.square().sum().backward()
        torch.testing.assert_close(output.cpu(), expected, rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-4)
        for tensor in (uploaded, output):
            assert spmd.get_sharding(tensor).partition_spec(3) == P(None, "fsdp", None)
        assert "each device computes all" not in capsys.readouterr().err

    def test_batch_first(self, mesh8: spmd.Mesh) -> None:
        model = fsdp.fully_shard(nn.LSTM(16, 16, batch_first=True), mesh=mesh8)
        x = torch.randn(BATCH, TIME, 16).to("xla")
        assert spmd.get_sharding(model(x)[0]).partition_spec(3) == P("fsdp", None, None)

    @pytest.mark.parametrize("batch_first", [True, False])
    def test_inside_of_another(
        self, batch_first: bool, mesh8: spmd.Mesh, capsys: pytest.CaptureFixture[str]
    ) -> None:
        class Tagger(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.rnn = nn.LSTM(16, 16, batch_first=batch_first)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                result: torch.Tensor = self.rnn(x)[0]
                return result

        model = fsdp.fully_shard(Tagger(), mesh=mesh8)
        for _ in range(2):
            model(torch.randn(8, BATCH, 16).to("xla"))
        said = capsys.readouterr().err
        assert said.count("LSTM 'rnn' takes (time, batch, ...)") == (0 if batch_first else 1)
