"""Usual calls on a model that FullyShardedDataParallel has wrapped, against plain torch."""

import copy
import gc
import weakref

import pytest
import torch
from support import check
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from wrapped import FSDP, POLICY, Layer, Net, same_training, spec, train

import fsdp
import spmd


class TestStateDict:
    """state_dict has the plain module's keys, in both directions, also inside another module."""

    def test_round_trip(self, mesh8: spmd.Mesh) -> None:
        plain = Net()
        model = FSDP(Net(), mesh=mesh8, auto_wrap_policy=POLICY)
        assert list(model.state_dict()) == list(plain.state_dict())
        assert str(model.load_state_dict(plain.state_dict())) == "<All keys matched successfully>"
        other = Net()
        other.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
        for name, value in plain.state_dict().items():
            assert torch.equal(other.state_dict()[name], value)
        assert spec(model.blocks[0].up.weight) == ("fsdp", None)

    def test_values_on_the_device_load_into_a_cpu_module(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(Net(), mesh=mesh8)
        plain = Net()
        plain.load_state_dict(model.state_dict())
        assert torch.equal(plain.head.weight, model.head.weight.detach().cpu())

    def test_inside_another_module(self, mesh8: spmd.Mesh) -> None:
        class Outer(nn.Module):
            def __init__(self, inner: nn.Module) -> None:
                super().__init__()
                self.inner = inner
                self.module_out = nn.Linear(8, 8)

        plain = Outer(Net())
        outer = Outer(FSDP(Net(), mesh=mesh8, auto_wrap_policy=POLICY))
        assert list(outer.state_dict()) == list(plain.state_dict())
        assert not any(outer.load_state_dict(plain.state_dict()))
        assert torch.equal(outer.inner.head.weight.detach().cpu(), plain.inner.head.weight)

    def test_wrapped_inside_wrapped(self, mesh8: spmd.Mesh) -> None:
        plain = Net()
        net = copy.deepcopy(plain)
        net.blocks[0] = FSDP(net.blocks[0], mesh=mesh8)
        model = FSDP(net, mesh=mesh8)
        assert sorted(model.state_dict()) == sorted(plain.state_dict())
        assert not any(model.load_state_dict(plain.state_dict()))
        x = torch.randn(8, 16)
        check(model(x.to("xla")), plain(x))

    def test_a_submodule_called_module(self, mesh8: spmd.Mesh) -> None:
        plain = nn.ModuleDict({"module": nn.Linear(8, 8), "other": nn.Linear(8, 8)})
        model = FSDP(copy.deepcopy(plain), mesh=mesh8)
        assert list(model.state_dict()) == list(plain.state_dict())
        assert not any(model.load_state_dict(plain.state_dict()))

    def test_missing_and_unexpected_keys_by_their_plain_names(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(Net(), mesh=mesh8)
        state = Net().state_dict()
        del state["head.bias"]
        state["extra"] = torch.ones(1)
        found = model.load_state_dict(state, strict=False)
        assert (found.missing_keys, found.unexpected_keys) == (["head.bias"], ["extra"])
        with pytest.raises(RuntimeError, match=r'"head.bias"') as error:
            model.load_state_dict(state)
        assert "module." not in str(error.value)

    def test_the_given_dict_is_not_changed(self, mesh8: spmd.Mesh) -> None:
        state = Net().state_dict()
        before = list(state)
        FSDP(Net(), mesh=mesh8).load_state_dict(state)
        assert list(state) == before

    def test_a_materialised_meta_module(self, mesh8: spmd.Mesh) -> None:
        """The other order: `to_empty`, wrap, then load."""
        plain = Net()
        with torch.device("meta"):
            net = Net()
        model = FSDP(net.to_empty(device="xla"), mesh=mesh8, auto_wrap_policy=POLICY)
        assert not any(model.load_state_dict(plain.state_dict()))
        x = torch.randn(8, 16)
        check(model(x.to("xla")), plain(x))
        assert spec(model.head.weight) == (None, "fsdp")

    def test_optimizer_state(self, mesh8: spmd.Mesh) -> None:
        """Training continues from the optimizer's state dict of another run."""
        x = torch.randn(8, 16)
        plain = Net()
        wrapped = FSDP(copy.deepcopy(plain), mesh=mesh8)
        one, other = torch.optim.AdamW(plain.parameters()), torch.optim.AdamW(wrapped.parameters())
        train(plain, x, optimizer=one)
        wrapped.load_state_dict(plain.state_dict())
        other.load_state_dict(copy.deepcopy(one.state_dict()))
        assert train(wrapped, x.to("xla"), optimizer=other) == pytest.approx(
            train(plain, x, optimizer=one), rel=1e-5
        )
        assert spec(other.state[wrapped.head.weight]["exp_avg"]) == (None, "fsdp")


class TestTiedWeights:
    """Weights that two modules share stay shared, are annotated once and trained once."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(32, 16)
            self.body = Layer(16)
            self.head = nn.Linear(16, 32, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.body(self.embed(tokens)))

    @pytest.mark.parametrize("device", ["cpu", "xla"])
    def test_stay_tied(self, device: str, mesh8: spmd.Mesh) -> None:
        with torch.device(device):
            net = self.Tied()
        model = FSDP(net, mesh=mesh8, auto_wrap_policy=fsdp.always_wrap_policy)
        assert model.head.weight is model.embed.weight
        assert spec(model.head.weight) == ("fsdp", None)

    def test_train_as_plain_torch(self, mesh8: spmd.Mesh) -> None:
        plain = self.Tied()
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, auto_wrap_policy=POLICY)
        tokens = torch.randint(32, (8, 4))
        assert train(model, tokens.to("xla")) == pytest.approx(train(plain, tokens), rel=1e-5)
        check(model.head.weight, plain.embed.weight)


class TestTraining:
    """Calls of a training program in addition to the plain step."""

    def test_gradients_accumulate_over_two_backwards(self, mesh8: spmd.Mesh) -> None:
        plain = Net()
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, auto_wrap_policy=POLICY)
        for x in torch.randn(2, 8, 16):
            plain(x).square().mean().backward()
            model(x.to("xla")).square().mean().backward()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            check(one.grad, other.grad)
            assert spmd.get_sharding(one.grad) is spmd.get_sharding(one)

    def test_gradients_accumulate_with_a_barrier_between(self, mesh8: spmd.Mesh) -> None:
        plain = Net()
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, auto_wrap_policy=POLICY)
        for x in torch.randn(3, 8, 16):
            plain(x).square().mean().backward()
            model(x.to("xla")).square().mean().backward()
            spmd.sync()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            check(one.grad, other.grad)
            assert spmd.get_sharding(one.grad) is spmd.get_sharding(one)

    def test_eval_without_gradients(self, mesh8: spmd.Mesh) -> None:
        plain = nn.Sequential(
            nn.Linear(16, 16), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.Linear(16, 8)
        ).eval()
        model = FSDP(copy.deepcopy(plain), mesh=mesh8)
        assert not model.module.training
        x = torch.randn(8, 16)
        with torch.no_grad():
            output = model(x.to("xla"))
            check(output, plain(x))
        assert not output.requires_grad
        assert model.train()[1].training

    def test_an_evaluation_between_two_steps_does_not_recompile_the_step(
        self, mesh8: spmd.Mesh
    ) -> None:
        model = FSDP(Net(width=24), mesh=mesh8, auto_wrap_policy=POLICY)
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(8, 24)
        train(model, x.to("xla"), optimizer=optimizer, steps=1)
        with torch.no_grad():
            model.eval()(x.to("xla")).sum().item()
        model.train()
        before = spmd.metrics.num_compiles()
        train(model, x.to("xla"), optimizer=optimizer, steps=2)
        assert spmd.metrics.num_compiles() == before

    @pytest.mark.parametrize("use_reentrant", [False, True])
    def test_checkpointed_blocks(self, use_reentrant: bool, mesh8: spmd.Mesh) -> None:
        class Checkpointed(Net):
            def forward(self, x: Tensor) -> Tensor:
                x.requires_grad_()
                for block in self.blocks:
                    x = checkpoint(block, x, use_reentrant=use_reentrant)
                return self.head(x * self.scale)

        same_training(Checkpointed, mesh8, 8, 16, auto_wrap_policy=POLICY)

    def test_an_error_in_forward_leaves_the_model_usable(self, mesh8: spmd.Mesh) -> None:
        plain = Net()
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, auto_wrap_policy=POLICY)
        with pytest.raises(RuntimeError):
            model(torch.randn(8, 15).to("xla"))
        x = torch.randn(8, 16)
        check(model(x.to("xla")), plain(x))
        train(model, x.to("xla"), steps=1)
        assert spec(model.head.weight) == (None, "fsdp")

    def test_a_frozen_copy_of_the_batch_is_not_needed(self, mesh8: spmd.Mesh) -> None:
        """A batch that the devices do not divide runs too, such as the last batch of an epoch."""
        plain = Net()
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, auto_wrap_policy=POLICY)
        x = torch.randn(5, 16)
        check(model(x.to("xla")), plain(x))


class TestConversion:
    """`.to(dtype)`, `.to("xla")` and `.cpu()` on the wrapped model, or on a module around it."""

    @pytest.mark.parametrize("around", [False, True])
    def test_another_dtype_is_split_and_trains_alike(self, around: bool, mesh8: spmd.Mesh) -> None:
        plain = Net()
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, auto_wrap_policy=POLICY)
        (nn.Sequential(model) if around else model).to(torch.float64)
        plain.to(torch.float64)
        assert spec(model.head.weight) == (None, "fsdp")
        x = torch.randn(8, 16, dtype=torch.float64)
        assert train(model, x.to("xla")) == pytest.approx(train(plain, x), rel=1e-9)
        assert spec(model.blocks[0].up.weight) == ("fsdp", None)

    def test_to_the_device_again_changes_nothing(self, mesh8: spmd.Mesh) -> None:
        plain = Net(width=32)
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, auto_wrap_policy=POLICY)
        x = torch.randn(8, 32)
        expected = train(plain, x, steps=4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = train(model, x.to("xla"), optimizer=optimizer, steps=2)
        before = spmd.metrics.num_compiles()
        losses += train(model.to("xla"), x.to("xla"), optimizer=optimizer, steps=2)
        assert losses == pytest.approx(expected, rel=1e-5)
        assert spmd.metrics.num_compiles() == before

    def test_back_to_the_cpu(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(Net(), mesh=mesh8, auto_wrap_policy=POLICY)
        x = torch.randn(8, 16)
        expected = model(x.to("xla")).detach().cpu()
        torch.testing.assert_close(model.cpu()(x), expected, rtol=2e-5, atol=2e-5)


class TestCopies:
    """deepcopy gives an independent model, sharded and gathered like the first."""

    def test_deepcopy(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(Net(), mesh=mesh8, auto_wrap_policy=POLICY)
        copied = copy.deepcopy(model)
        assert list(copied.state_dict()) == list(model.state_dict())
        assert spec(copied.blocks[0].up.weight) == ("fsdp", None)
        x = torch.randn(8, 16).to("xla")
        check(copied(x), model(x).detach().cpu())
        before = copied.head.weight.detach().cpu()
        expected = train(model, x)
        assert torch.equal(copied.head.weight.detach().cpu(), before)
        compiled = spmd.metrics.num_compiles()
        assert train(copied, x) == pytest.approx(expected, rel=1e-6)
        assert spmd.metrics.num_compiles() == compiled, "the copy trains by the same program"

    def test_deepcopy_keeps_ties(self, mesh8: spmd.Mesh) -> None:
        copied = copy.deepcopy(FSDP(TestTiedWeights.Tied(), mesh=mesh8))
        assert copied.head.weight is copied.embed.weight


class TestLifetime:
    """Unreferenced tensors and modules are freed at once, without the garbage collector."""

    def test_the_wrapper_is_in_no_cycle(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(Net(), mesh=mesh8, auto_wrap_policy=POLICY)
        train(model, torch.randn(8, 16).to("xla"), steps=1)
        gone = weakref.ref(model)
        gc.disable()
        try:
            del model
            assert gone() is None
        finally:
            gc.enable()

    def test_parameters_go_with_the_model(self, mesh8):
        def build() -> nn.Module:
            model = FSDP(Net().to("xla"), mesh=mesh8, auto_wrap_policy=POLICY)
            model(torch.randn(8, 16, device="xla")).sum().backward()
            spmd.sync()
            return model

        build()  # the first use of an op keeps frames until the collector runs
        gc.collect()
        gc.disable()
        try:
            model = build()
            storages = [weakref.ref(parameter._storage) for parameter in model.parameters()]
            del model
            assert [storage() for storage in storages if storage() is not None] == []
        finally:
            gc.enable()


class TestFrozen:
    """A parameter that was frozen when the model was wrapped and is trained later has a sharded
    gradient, too."""

    def test_thawed(self, mesh8):
        module = nn.Linear(16, 8).requires_grad_(False)
        model = FSDP(module, mesh=mesh8)
        model.requires_grad_(True)
        model(torch.randn(8, 16, device="xla")).sum().backward()
        spmd.sync()
        for parameter in model.parameters():
            assert spmd.get_sharding(parameter.grad) is spmd.get_sharding(parameter)
