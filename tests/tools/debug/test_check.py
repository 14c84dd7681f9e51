"""`eager`, `nan_guard` and `check`: finding the op and the line at fault."""

import copy
import threading

import pytest
import torch
from support import check as agree
from torch import nn

import spmd
from spmd.ops import RULES
from spmd.ops.registry import Rule

aten = torch.ops.aten


def here(text: str, *fragments: str) -> None:
    """Asserts that a message names this file and holds these fragments."""
    assert __file__ in text, text
    for fragment in fragments:
        assert fragment in text, text


def break_rule(monkeypatch, overload, change) -> None:
    """Makes a rule wrong for shapes that no other test uses."""
    rule = RULES[overload]
    changed = Rule(change(rule.function), rule.promote, rule.wants_returns, rule.wants_draw)
    monkeypatch.setitem(RULES, overload, changed)
    monkeypatch.delitem(spmd.core.record.call.PLANS, overload, raising=False)


@pytest.fixture(autouse=True)
def plans_as_before():
    """A plan made of a broken rule does not outlive its test."""
    before = dict(spmd.core.record.call.PLANS)
    yield
    for overload in [
        o for o, plan in spmd.core.record.call.PLANS.items() if before.get(o) is not plan
    ]:
        del spmd.core.record.call.PLANS[overload]


class TestEager:
    """Each op runs as it is called; errors come from the op's own line; results are the same."""

    def test_nothing_stays_pending(self):
        before = spmd.metrics.counter("runs")
        with spmd.eager():
            x = torch.arange(6.0, device="xla")
            assert spmd.get_stablehlo() == ""
            x = x * 2
            assert spmd.get_stablehlo() == ""
            y = x.view(2, 3).exp().sum(0)
            assert spmd.get_stablehlo() == ""
            assert spmd.metrics.counter("runs") - before >= 3
        z = y + 1
        assert "stablehlo.add" in spmd.get_stablehlo([z])

    def test_error_at_its_line(self, monkeypatch):
        def broken(function):
            def fail(*args, **kwargs):
                raise ValueError("out of order")

            return fail

        x = torch.ones(7, 3, device="xla")
        break_rule(monkeypatch, aten.sinh.default, broken)
        with spmd.eager():
            with pytest.raises(RuntimeError, match=r"out of order") as caught:
                y = x.sinh()  # this line
                y + 1
            here(str(caught.value), "aten.sinh")
            assert any("# this line" in str(frame.statement) for frame in caught.traceback)
            assert (x + 1).sum().item() == 42

    def test_training_is_the_same(self, mesh8):
        def train(is_eager: bool) -> list[torch.Tensor]:
            torch.manual_seed(3)
            model = nn.Sequential(
                nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 8)
            ).to("xla")
            for parameter in model.parameters():
                spmd.mark_sharding(parameter, mesh8, ("fsdp", *[None] * (parameter.dim() - 1)))
            optimizer = torch.optim.AdamW(model.parameters(), eps=1e-4)
            x = torch.randn(8, 8).to("xla")
            with spmd.eager() if is_eager else threading.Lock():
                for _ in range(2):
                    model(x).pow(2).mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
            spmd.sync()
            return [parameter.detach().cpu() for parameter in model.parameters()]

        for one, other in zip(train(True), train(False), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)

    def test_leaves_the_fast_path_alone(self):
        from_before = spmd.core.record.tensor.XlaTensor.__torch_dispatch__
        with spmd.eager():
            pass
        assert spmd.core.record.tensor.XlaTensor.__torch_dispatch__ is from_before


class TestNanGuard:
    """The first op that makes a NaN or an infinity, or what brings one in, is named with its line;
    data is kept."""

    def test_names_op_and_line(self):
        x = torch.tensor([1.0, -2.0]).to("xla")
        with pytest.raises(FloatingPointError) as caught, spmd.nan_guard():
            y = x * 2
            z = y.log()  # the fault
            (z + 1).exp().tolist()
        here(str(caught.value), "NaN", "aten.log(float32[2])", "z = y.log()  # the fault")
        assert x.tolist() == [1, -2]

    def test_infinity(self):
        x = torch.tensor([0.0, 1.0]).to("xla")
        with (
            pytest.raises(FloatingPointError, match=r"infinity was made by aten.reciprocal"),
            spmd.nan_guard(),
        ):
            x.reciprocal().tolist()
        with spmd.nan_guard(inf=False):
            assert x.reciprocal().tolist() == [float("inf"), 1]
        with (
            pytest.raises(FloatingPointError, match=r"NaN was made by aten.sub"),
            spmd.nan_guard(inf=False),
        ):
            y = x.reciprocal()
            (y - y).tolist()

    def test_backward_names_the_forward_line(self):
        x = torch.zeros(3).to("xla").requires_grad_()
        with pytest.raises(FloatingPointError) as caught, spmd.nan_guard(inf=False):
            y = x.sqrt()  # its gradient is 0 / 0
            (y * 0).sum().backward()
        here(str(caught.value), "the backward of", "y = x.sqrt()  # its gradient")

    def test_what_is_handled_is_not_blamed(self):
        """A NaN that reaches no result, and infinities where masks have them."""
        x = torch.tensor([float("nan"), 1.0]).to("xla")
        scores = torch.randn(4, 4).to("xla")
        uploaded = torch.full((4, 4), float("-inf")).triu(1).to("xla")
        best = torch.zeros(4, device="xla")
        with spmd.nan_guard():
            is_nan, mended = torch.isnan(x * 2 + 1).tolist(), x.nan_to_num(7.0).tolist()
            assert is_nan == [True, False] and mended == [7, 1]
            mask = torch.ones(4, 4, device="xla").triu(1).bool()
            probabilities = scores.masked_fill(mask, float("-inf")).softmax(-1)
            bias = torch.full((4, 4), float("-inf"), device="xla").triu(1).clamp(min=-1)
            assert (probabilities + bias).isfinite().all().item() and (scores + uploaded).softmax(
                -1
            ).sum().item() > 3
            best[1:] = float("-inf")
            uploaded[0] = 0
            spmd.sync()
            best += 1
            spmd.sync()

    @pytest.mark.parametrize("kind", [float("nan"), float("inf")])
    @pytest.mark.parametrize("where", ["batch", "parameter", "number", "moment", "rate"])
    def test_what_comes_in(self, where, kind):
        """The origin of a NaN or an infinity in a step is named with its line; nothing is
        overwritten."""
        ones = torch.ones(3, 2)
        values = ones.fill_(kind) if where == "parameter" else ones
        weight = nn.Parameter(values.to("xla"))
        optimizer = torch.optim.SGD([weight], lr=kind if where == "rate" else 0.1, momentum=0.9)
        state = torch.full((3, 2), kind if where == "moment" else 0.0).to("xla")
        optimizer.state[weight]["momentum_buffer"] = state
        count, other = torch.zeros((), device="xla"), torch.ones(2).to("xla")
        spmd.sync()
        before, pending = weight.detach().cpu(), other + 1
        count.add_(1)
        with pytest.raises(FloatingPointError) as caught, spmd.nan_guard():
            batch = torch.full((4, 3), kind if where == "batch" else 1.0).to("xla")
            loss = (batch @ weight * (kind if where == "number" else 1.0)).mean()
            loss.backward()
            optimizer.step()
            spmd.sync()
        name = "NaN" if kind != kind else "infinity"
        line = {
            "batch": "batch = torch.full(",
            "parameter": "weight = nn.Parameter(",
            "moment": "state = torch.full(",
            "number": "loss = (batch @ weight",
            "rate": "optimizer.step()",
        }[where]
        assert name in str(caught.value) and line in str(caught.value), caught.value
        assert torch.equal(weight.detach().cpu().isnan(), before.isnan())
        assert torch.equal(weight.detach().cpu().nan_to_num(), before.nan_to_num())
        # what has no part in it stays recorded
        assert pending.tolist() == [2, 2] and count.item() == 1

    def test_what_comes_in_elsewhere(self):
        """Of a buffer, of an earlier program, as an integer."""
        norm = nn.BatchNorm1d(2).to("xla").eval()
        norm.running_mean.fill_(float("nan"))
        earlier = torch.tensor([1.0, -1.0]).to("xla").log()  # made here
        spmd.sync()
        x = torch.tensor([[1.0, float("nan")]]).to("xla")
        for run, words in (
            (lambda: norm(torch.ones(2, 2).to("xla")).tolist(), "a buffer, float32[2]"),
            (lambda: earlier.sum().item(), "made by aten.log"),
            (lambda: x.long().tolist(), "it reached aten._to_copy"),
            (lambda: x.sum().item(), "by an input, float32[1,2]"),
        ):
            with pytest.raises(FloatingPointError) as caught, spmd.nan_guard():
                run()
            assert "a NaN came in" in str(caught.value) and words in str(caught.value)

    @pytest.mark.parametrize("kind", [float("nan"), float("inf")])
    def test_cast_to_integers(self, kind):
        """By a copy on the device, of a list or by the host, a filling, a sum; of data or of the
        user's own number."""
        name, source = (
            "a NaN" if kind != kind else "an infinity",
            torch.tensor([1.0, kind]).to("xla"),
        )
        whole, other = torch.zeros(2, dtype=torch.int64, device="xla"), torch.ones(2, device="xla")
        spmd.sync()
        for cast, words in (
            (lambda: whole.copy_(source), "it reached aten.copy_"),
            (
                lambda: whole.copy_(torch.tensor([1.0, kind])),
                "CPU data that is cast to torch.int64",
            ),
            (
                lambda: torch.tensor([kind]).to("xla", torch.int8),
                "CPU data that is cast to torch.int8",
            ),
            (lambda: whole[1:].copy_(source[1:]), "it reached aten.copy_"),
            (
                lambda: torch._foreach_copy_([other, whole], [other + 1, source]),
                "it reached aten.copy_",
            ),
            (lambda: whole.fill_(source[1]), "it reached aten.fill"),
            (lambda: source.sum(dtype=torch.int64), "it reached aten.sum"),
            (lambda: source.cumsum(0, dtype=torch.int32), "it reached aten.cumsum"),
            (lambda: source.prod(0, dtype=torch.int64), "it reached aten.prod"),
            (lambda: torch.full((2,), kind, device="xla").long(), "by a number in aten.fill_"),
        ):
            with pytest.raises(FloatingPointError) as caught, spmd.nan_guard():
                made = cast()
                spmd.sync()
            assert f"{name} came in" in str(caught.value) and words in str(caught.value), (
                words,
                caught.value,
            )
            made = None  # what is blamed stays in no later program
        assert whole.tolist() == [0, 0] and made is None
        with spmd.nan_guard():
            found = [
                source.bool().tolist(),
                source.argsort().tolist(),
                source.isfinite().int().tolist(),
            ]
        assert found == [[True, True], [0, 1], [1, 0]]
        with spmd.nan_guard(inf=False):
            whole.copy_(torch.tensor([1.0, float("inf")]))

    def test_the_first_step(self):
        """Parameters and moments of the same barrier hold their initial values."""
        batch = torch.full((4, 3), float("nan")).to("xla")
        with pytest.raises(FloatingPointError, match="by an input"), spmd.nan_guard():
            layer = nn.Linear(3, 2, device="xla")
            optimizer = torch.optim.AdamW(layer.parameters(), 0.1)
            layer(batch).sum().backward()
            optimizer.step()
            spmd.sync()
        assert layer.weight.isfinite().all().item() and layer.weight.detach().abs().sum().item() > 0
        assert optimizer.state[layer.weight]["exp_avg"].tolist() == [[0.0] * 3] * 2
        with pytest.raises(RuntimeError, match="nan_guard"):
            layer.weight.grad.tolist()

    def test_several_results_and_bf16(self):
        x = torch.tensor([[1e38, 3e38], [1.0, 2.0]]).to("xla")
        with (
            pytest.raises(FloatingPointError, match=r"infinity was made by aten.add"),
            spmd.nan_guard(),
        ):
            values, _ = (x.to(torch.bfloat16) + x.to(torch.bfloat16)).max(1)
            values.tolist()

    def test_state_is_kept(self, mesh8):
        model = nn.Linear(8, 8).to("xla")
        spmd.mark_sharding(model.weight, mesh8, ("fsdp", None))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        spmd.sync()
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(FloatingPointError, match=r"aten.sqrt"), spmd.nan_guard():
            (model(torch.ones(8, 8).to("xla")) - 100).sqrt().sum().backward()
            optimizer.step()
            spmd.sync()
        for name, value in model.state_dict().items():
            agree(value, before[name].cpu())
        optimizer.zero_grad()
        with spmd.nan_guard():
            model(torch.ones(8, 8).to("xla")).sum().backward()
            optimizer.step()
        assert model.weight.isfinite().all().item()

    def test_the_end_of_the_block_runs_it(self):
        with pytest.raises(FloatingPointError, match=r"aten.log"), spmd.nan_guard():
            _y = (torch.zeros(2, device="xla") - 1).log()

    def test_second_step_compiles_nothing(self):
        x = torch.ones(5, 3).to("xla")
        counts = []
        with spmd.nan_guard():
            for _ in range(3):
                x.mul_(0.5).exp_()
                spmd.sync()
                counts.append(spmd.metrics.counter("programs_compiled"))
        assert counts[1] == counts[2]


class TestCheck:
    """Each op against the CPU from the same operands; the first that differs is named with its
    line."""

    def test_agreement_returns_the_device_result(self, mesh8):
        x = spmd.mark_sharding(torch.randn(8, 4).to("xla"), mesh8, ("fsdp", None))
        made = spmd.check(lambda x, w: torch.softmax(x @ w, -1), x, torch.randn(4, 3))
        assert made.device.type == "xla" and made.shape == (8, 3)

    def test_module_with_backward(self):
        model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)).to(
            "xla"
        )

        def step(model, x):
            loss = model(x).pow(2).mean()
            loss.backward()
            return loss, [parameter.grad for parameter in model.parameters()]

        loss, gradients = spmd.check(step, model, torch.randn(3, 4))
        assert len(gradients) == 6 and loss.item() > 0

    @pytest.mark.parametrize("backward", [False, True])
    def test_names_the_op_that_differs(self, monkeypatch, backward):
        op = aten.tanh_backward.default if backward else aten.sinh.default
        break_rule(
            monkeypatch,
            op,
            lambda function: lambda *args, **kwargs: function(*args, **kwargs) * 1.01,
        )

        def fn(x):
            y = x.tanh() * 2  # tanh here
            y = y.sinh()  # sinh here
            z = y.exp().sum()
            return torch.autograd.grad(z, x)[0] if backward else z

        with pytest.raises(AssertionError) as caught:
            spmd.check(fn, torch.randn(11, requires_grad=True))
        here(
            str(caught.value), str(op), "float32[11]", "# tanh here" if backward else "# sinh here"
        )
        assert ("the backward of" in str(caught.value)) == backward

    def test_in_place_ops(self):
        def fn(x):
            y = x.clone()
            y[1:3].mul_(2)
            y.t()[0].add_(1)
            return y.sum(0)

        spmd.check(fn, torch.randn(4, 3))

    def test_random_is_not_compared(self):
        assert spmd.check(lambda x: nn.functional.dropout(x, 0.5), torch.ones(64)).shape == (64,)

    def test_a_function_that_asks_where_it_runs(self):
        with pytest.raises(
            AssertionError, match=r"each op agrees with the CPU, but the function's result differs"
        ):
            spmd.check(lambda x: x * (2 if x.device.type == "xla" else 3), torch.ones(3))

    def test_closure_needs_cpu(self):
        weight = torch.ones(3).to("xla")
        with pytest.raises(RuntimeError, match=r"pass .* as cpu=|cpu="):
            spmd.check(lambda x: x * weight, torch.ones(3))
        spmd.check(lambda x: x * weight, torch.ones(3), cpu=lambda x: x * torch.ones(3))
