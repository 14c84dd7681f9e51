"""Random numbers: the same on every mesh, seeded, saved and restored without a barrier."""

import io

import pytest
import torch
from support import run_script
from torch import nn

import spmd


def draws(mesh: spmd.Mesh | None) -> list[torch.Tensor]:
    torch.manual_seed(7)
    made = [
        torch.rand(16, 4, device="xla"),
        torch.randn(16, 4, device="xla"),
        torch.randint(0, 100, (16, 4), device="xla"),
        torch.empty(16, 4, device="xla").bernoulli_(0.3),
        nn.functional.dropout(torch.ones(16, 4, device="xla"), 0.5),
        nn.Linear(4, 16, device="xla").weight.detach(),
    ]
    if mesh is not None:
        for tensor in made:
            spmd.mark_sharding(tensor, mesh, (mesh.axis_names[0], None))
    spmd.sync()
    return [tensor.cpu() for tensor in made]


class TestMesh:
    """The same seed gives the same numbers on 1, 4 and 8 devices and under both partitioners."""

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    @pytest.mark.parametrize("size", [1, 4, 8])
    def test_same_numbers(self, size: int, partitioner: str) -> None:
        expected = draws(None)
        before = spmd.config.partitioner
        spmd.config.partitioner = partitioner
        try:
            made = draws(spmd.Mesh(range(size), (size,), ("data",)))
        finally:
            spmd.config.partitioner = before
        for actual, wanted in zip(made, expected, strict=True):
            assert torch.equal(actual, wanted)

    def test_uneven(self, mesh8: spmd.Mesh) -> None:
        torch.manual_seed(3)
        whole = torch.rand(10, 3, device="xla").cpu()
        torch.manual_seed(3)
        cut = spmd.mark_sharding(torch.rand(10, 3, device="xla"), mesh8, ("fsdp", None))
        assert torch.equal(cut.cpu(), whole)


class TestSeed:
    """`torch.manual_seed` starts the stream; every draw after it is another one."""

    def test_manual_seed(self) -> None:
        def pair() -> tuple[list[float], list[float]]:
            return torch.rand(4, device="xla").tolist(), torch.rand(4, device="xla").tolist()

        torch.manual_seed(1)
        first, second = pair()
        torch.manual_seed(1)
        assert pair() == (first, second) and first != second
        torch.manual_seed(2)
        assert pair()[0] != first
        spmd.manual_seed(1)
        assert pair() == (first, second)

    def test_device_seed_leaves_the_cpu_alone(self) -> None:
        torch.manual_seed(1)
        expected = torch.rand(3)
        torch.manual_seed(1)
        spmd.manual_seed(9)
        torch.rand(3, device="xla")
        assert torch.equal(torch.rand(3), expected)

    def test_a_new_draw_each_step_is_one_program(self) -> None:
        seen = []
        spmd.sync()
        for step in range(4):
            if step == 1:
                before = spmd.metrics.num_compiles()
            seen.append(tuple(nn.functional.dropout(torch.ones(32).to("xla"), 0.5).tolist()))
        assert len(set(seen)) == 4 and spmd.metrics.num_compiles() == before

    def test_a_new_process_draws_the_same(self) -> None:
        printed = run_script(
            "import torch, spmd; torch.manual_seed(5); print(torch.rand(3, device='xla').tolist())"
        )
        torch.manual_seed(5)
        assert printed.strip() == str(torch.rand(3, device="xla").tolist())


class TestState:
    """The state is two numbers; saving and restoring them runs nothing."""

    def test_save_and_restore(self) -> None:
        torch.rand(2, device="xla")
        runs, syncs = spmd.metrics.counter("runs"), spmd.metrics.counter("syncs")
        state = torch.xla.get_rng_state()
        first = torch.rand(4, device="xla")
        torch.xla.set_rng_state(state)
        second = torch.rand(4, device="xla")
        assert (spmd.metrics.counter("runs"), spmd.metrics.counter("syncs")) == (runs, syncs)
        assert torch.equal(first, second)

    def test_fork(self) -> None:
        with torch.random.fork_rng(devices=[0], device_type="xla"):
            inside = torch.rand(4, device="xla")
        outside = torch.rand(4, device="xla")
        assert torch.equal(inside, outside)

    def test_fork_of_all_devices(self) -> None:
        """Both streams are as they were, whatever is seeded inside."""
        torch.manual_seed(5)
        expected = torch.rand(4, device="xla"), torch.rand(4)
        torch.manual_seed(5)
        with torch.random.fork_rng(device_type="xla"):
            torch.manual_seed(6)
            torch.rand(4, device="xla")
        assert torch.equal(torch.rand(4, device="xla"), expected[0]) and torch.equal(
            torch.rand(4), expected[1]
        )

    def test_states_of_host_and_device_are_apart(self) -> None:
        host, device = torch.get_rng_state(), torch.xla.get_rng_state()
        first = torch.rand(4), torch.rand(4, device="xla")
        torch.set_rng_state(host)
        assert torch.equal(torch.rand(4), first[0]) and not torch.equal(
            torch.rand(4, device="xla"), first[1]
        )
        torch.xla.set_rng_state(device)
        assert torch.equal(torch.rand(4, device="xla"), first[1])

    @pytest.mark.parametrize("place", [None, "cpu", "xla"])
    def test_a_saved_state(self, place: str | None, mesh8: spmd.Mesh) -> None:
        """In a checkpoint, between two draws of a sharded step, without a barrier while saving."""
        model = spmd.mark_sharding(torch.ones(16, 4).to("xla"), mesh8, ("fsdp", None))
        pending = nn.functional.dropout(model, 0.5)
        syncs, file = spmd.metrics.counter("syncs"), io.BytesIO()
        torch.save({"xla": torch.xla.get_rng_state(), "all": torch.xla.get_rng_state_all()}, file)
        assert spmd.metrics.counter("syncs") == syncs
        expected = nn.functional.dropout(model, 0.5)
        file.seek(0)
        saved = torch.load(file, map_location=place)
        torch.xla.set_rng_state(saved["xla"])
        assert torch.equal(nn.functional.dropout(model, 0.5), expected) and not torch.equal(
            pending, expected
        )
        torch.xla.set_rng_state_all(saved["all"])
        assert torch.equal(nn.functional.dropout(model, 0.5), expected)

    def test_seeds(self) -> None:
        for seed in (0, 3, (1 << 64) - 1):
            torch.manual_seed(seed)
            assert torch.xla.initial_seed() == torch.initial_seed() == seed
            torch.xla.manual_seed(seed // 2)
            assert torch.xla.initial_seed() == seed // 2 and torch.initial_seed() == seed
            torch.xla.manual_seed_all(7)
            assert torch.xla.initial_seed() == 7
        torch.seed()
        assert torch.xla.initial_seed() == torch.initial_seed()
        for reseed in (torch.xla.seed, torch.xla.seed_all):
            before = torch.xla.initial_seed()
            assert reseed() is None and torch.xla.initial_seed() != before
            made = torch.rand(4, device="xla")
            torch.xla.manual_seed(torch.xla.initial_seed())
            assert torch.equal(torch.rand(4, device="xla"), made)

    def test_a_state_that_is_none(self) -> None:
        with pytest.raises(
            ValueError, match=r"set_rng_state: expected the 2 numbers of .* got 5056"
        ):
            torch.xla.set_rng_state(torch.get_rng_state())

    def test_checkpoint_repeats_the_mask(self) -> None:
        x = torch.ones(64, device="xla", requires_grad=True)
        y = torch.utils.checkpoint.checkpoint(
            lambda x: nn.functional.dropout(x * 1, 0.5), x, use_reentrant=False
        )
        y.sum().backward()
        assert torch.equal(y.detach(), x.grad)


class TestGenerators:
    """A CPU generator may be passed; it has a stream of its own."""

    def test_cpu_generator(self) -> None:
        torch.manual_seed(0)
        first = torch.rand(4, device="xla", generator=torch.Generator().manual_seed(3))
        other = torch.rand(4, device="xla", generator=torch.Generator().manual_seed(4))
        again = torch.rand(4, device="xla", generator=torch.Generator().manual_seed(3))
        assert torch.equal(first, again) and not torch.equal(first, other)
        generator = torch.Generator().manual_seed(3)
        x = torch.empty(4, device="xla").normal_(generator=generator)
        assert not torch.equal(x, torch.empty(4, device="xla").normal_(generator=generator))

    def test_initialisers_take_it(self) -> None:
        made = [
            nn.init.xavier_uniform_(
                torch.empty(4, 4, device="xla"), generator=torch.Generator().manual_seed(1)
            )
            for _ in "ab"
        ]
        assert torch.equal(*made)


class TestDistributions:
    """Moments and ranges of the distributions, on enough numbers that chance does not fail them."""

    COUNT = 1 << 16

    def test_moments(self) -> None:
        empty = torch.empty(self.COUNT, device="xla")
        cases = {
            "rand": (torch.rand(self.COUNT, device="xla"), 0.5, 1 / 12),
            "uniform": (empty.clone().uniform_(-1, 3), 1.0, 16 / 12),
            "randn": (torch.randn(self.COUNT, device="xla"), 0.0, 1.0),
            "normal": (empty.clone().normal_(2, 3), 2.0, 9.0),
            "bernoulli": (empty.clone().bernoulli_(0.3), 0.3, 0.21),
            "bernoulli of p": (torch.full((self.COUNT,), 0.7, device="xla").bernoulli(), 0.7, 0.21),
            "exponential": (empty.clone().exponential_(2.0), 0.5, 0.25),
            "randint": (torch.randint(0, 10, (self.COUNT,), device="xla").float(), 4.5, 8.25),
            "double": (torch.randn(self.COUNT, device="xla", dtype=torch.float64), 0.0, 1.0),
            "half": (torch.rand(self.COUNT, device="xla", dtype=torch.bfloat16), 0.5, 1 / 12),
        }
        spmd.sync()
        for name, (tensor, mean, variance) in cases.items():
            values = tensor.cpu().double()
            error = 6 * (variance / self.COUNT) ** 0.5 + (
                2**-8 if tensor.dtype == torch.bfloat16 else 0
            )
            assert abs(values.mean().item() - mean) < error, name
            assert abs(values.var().item() - variance) < 0.05 * variance, name

    def test_ranges(self) -> None:
        x = torch.rand(self.COUNT, device="xla")
        low, high = x.min().item(), x.max().item()
        assert 0 <= low < 1e-3 and 1 - 1e-3 < high < 1
        i = torch.randint(-3, 4, (self.COUNT,), device="xla")
        assert (i.min().item(), i.max().item()) == (-3, 3)
        assert torch.isfinite(torch.randn(self.COUNT, device="xla")).all()

    def test_neighbours_are_independent(self) -> None:
        x = torch.randn(2, self.COUNT, device="xla").cpu()
        limit = 6 / self.COUNT**0.5
        assert abs((x[0] * x[1]).mean().item()) < limit
        assert abs((x[0, 1:] * x[0, :-1]).mean().item()) < limit
        torch.manual_seed(1)
        first = torch.randn(self.COUNT, device="xla").cpu()
        torch.manual_seed(2)
        assert abs((first * torch.randn(self.COUNT, device="xla").cpu()).mean().item()) < limit

    def test_permutation(self) -> None:
        p = torch.randperm(100, device="xla")
        assert (
            p.dtype == torch.int64
            and sorted(p.tolist()) == list(range(100))
            and p.tolist() != list(range(100))
        )

    def test_dropout(self) -> None:
        x = torch.full((self.COUNT,), 3.0, device="xla", requires_grad=True)
        y = nn.functional.dropout(x, 0.25)
        y.sum().backward()
        kept = y.detach().cpu() != 0
        assert abs(kept.float().mean().item() - 0.75) < 0.02
        assert torch.equal(y.detach().cpu()[kept], torch.full((int(kept.sum()),), 4.0))
        assert torch.equal(x.grad.cpu() != 0, kept)
        assert nn.functional.dropout(x, 0.25, training=False) is x or torch.equal(
            nn.functional.dropout(x, 0.25, training=False), x
        )

    def test_like(self) -> None:
        x = torch.zeros(2, 3, device="xla", dtype=torch.float64)
        for made in (
            torch.rand_like(x),
            torch.randn_like(x),
            torch.randint_like(x, 5),
            torch.randint_like(x, 1, 5),
        ):
            assert (made.shape, made.dtype, made.device.type) == (x.shape, x.dtype, "xla")


class TestEverySource:
    """The rest of torch's random ops and all of nn.init: moments, as on CPU."""

    COUNT = 1 << 14

    def test_other_distributions(self) -> None:
        empty = torch.empty(self.COUNT, device="xla")
        cases = {
            "log_normal": (
                empty.clone().log_normal_(0, 0.5),
                torch.empty(self.COUNT).log_normal_(0, 0.5),
            ),
            "geometric": (empty.clone().geometric_(0.4), torch.empty(self.COUNT).geometric_(0.4)),
            "random": (empty.clone().random_(10), torch.empty(self.COUNT).random_(10)),
            "random from": (empty.clone().random_(3, 9), torch.empty(self.COUNT).random_(3, 9)),
            "poisson": (
                torch.poisson(empty.clone().fill_(3.0)),
                torch.poisson(torch.full((self.COUNT,), 3.0)),
            ),
            "normal of tensors": (
                torch.normal(empty.clone().fill_(1), 2.0),
                torch.normal(torch.ones(self.COUNT), 2.0),
            ),
            "multinomial": (
                torch.multinomial(
                    torch.tensor([1.0, 2.0, 1.0]).to("xla"), self.COUNT, replacement=True
                ).float(),
                torch.multinomial(
                    torch.tensor([1.0, 2.0, 1.0]), self.COUNT, replacement=True
                ).float(),
            ),
        }
        spmd.sync()
        for name, (actual, expected) in cases.items():
            actual, expected = actual.cpu(), expected
            limit = 8 * expected.std().item() / self.COUNT**0.5
            assert abs(actual.mean().item() - expected.mean().item()) < limit, name
            assert abs(actual.std().item() / expected.std().item() - 1) < 0.1, name

    def test_initialisers(self) -> None:
        init = nn.init
        cases = {
            "uniform_": lambda w: init.uniform_(w, -1, 2),
            "normal_": lambda w: init.normal_(w, 1, 2),
            "trunc_normal_": init.trunc_normal_,
            "xavier_uniform_": init.xavier_uniform_,
            "xavier_normal_": init.xavier_normal_,
            "kaiming_uniform_": init.kaiming_uniform_,
            "kaiming_normal_": init.kaiming_normal_,
            "sparse_": lambda w: init.sparse_(w, 0.3),
            "orthogonal_": init.orthogonal_,
            "ones_": init.ones_,
            "zeros_": init.zeros_,
            "constant_": lambda w: init.constant_(w, 0.3),
            "eye_": init.eye_,
        }
        for name, function in cases.items():
            actual, expected = (
                function(torch.empty(64, 64, device="xla")).cpu(),
                function(torch.empty(64, 64)),
            )
            limit = 8 * expected.std().item() / 64 + 1e-6
            assert abs(actual.mean().item() - expected.mean().item()) < limit, name
            assert (
                abs(actual.std().item() - expected.std().item())
                < 0.1 * expected.std().item() + 1e-6
            ), name
        dirac = nn.init.dirac_(torch.empty(4, 4, 3, device="xla"))
        assert torch.equal(dirac.cpu(), nn.init.dirac_(torch.empty(4, 4, 3)))

    def test_state_functions(self) -> None:
        torch.manual_seed(11)
        assert torch.xla.initial_seed() == 11 and len(torch.xla.get_rng_state_all()) == 1
        states = torch.xla.get_rng_state_all()
        first = torch.rand(3, device="xla").cpu()
        torch.xla.set_rng_state_all(states)
        assert torch.equal(first, torch.rand(3, device="xla").cpu())
        torch.xla.seed()
        assert not torch.equal(first, torch.rand(3, device="xla").cpu())


class TestTorchDistributions:
    """`torch.distributions` check their parameters by default, which reads them."""

    def test_parameters_are_checked(self) -> None:
        mean, scale = torch.zeros(3, device="xla"), torch.ones(3, device="xla")
        normal = torch.distributions.Normal(mean, scale)
        expected = torch.distributions.Normal(mean.cpu(), scale.cpu())
        assert torch.allclose(normal.log_prob(scale).cpu(), expected.log_prob(scale.cpu()))
        assert normal.rsample((2,)).shape == (2, 3)
        with pytest.raises(ValueError, match="found invalid values"):
            torch.distributions.Normal(mean, -scale)
        with pytest.raises(ValueError, match="within the support"):
            normal.log_prob(mean / 0)

    def test_randperm_with_a_generator(self) -> None:
        generator = torch.Generator().manual_seed(3)
        first = torch.randperm(9, device="xla", generator=generator)
        generator.manual_seed(3)
        assert torch.equal(first.cpu(), torch.randperm(9, device="xla", generator=generator).cpu())
        assert first.sort().values.tolist() == list(range(9))

    def test_gamma_and_dirichlet(self) -> None:
        """A draw of a Dirichlet sums to one; a draw of a gamma has torch's derivative."""
        shape = torch.tensor([0.5, 1.0, 4.0])
        drawn = torch.distributions.Dirichlet(shape.to("xla")).sample((64,)).cpu()
        assert torch.allclose(drawn.sum(-1), torch.ones(64)) and (drawn >= 0).all()
        assert torch.distributions.Beta(shape.to("xla"), 2.0).sample().shape == (3,)
        values = torch.tensor([0.3, 1.2, 3.0])
        slopes = torch._standard_gamma_grad(shape.to("xla"), values.to("xla")).cpu()
        assert torch.allclose(slopes, torch._standard_gamma_grad(shape, values), rtol=2e-3)
