"""`torch_xla.launch` and `xmp.spawn`: data parallelism over all devices, with the losses of as many
ranks of theirs."""

import argparse
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from scripted import loaded
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import BatchSampler, DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import spmd
from spmd.torch_xla import device_replicas, one_process, xla_collectives, xla_model, xla_runtime
from spmd.torch_xla.parallel_loader import MpDeviceLoader
from spmd.torch_xla.sample_data import SampleGenerator

RANKS = 8


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    spmd.compat.install()
    yield
    spmd.compat.uninstall()


@pytest.fixture(params=["gspmd", "shardy"])
def partitioner(request: pytest.FixtureRequest) -> Iterator[None]:
    before = spmd.config.partitioner
    spmd.config.partitioner = request.param
    yield
    spmd.config.partitioner = before


def launched(function: Any, *arguments: Any, **how: Any) -> Any:
    """What the function returns, which `launch` does not."""
    results: list[Any] = []
    one_process.launch(lambda index: results.append(function(*arguments)), **how)
    return results[0]


def by_ranks(script: ModuleType, flags: argparse.Namespace, ranks: int) -> dict[str, Any]:
    """Training in torch by so many ranks: each has its sampler, batches and gradients, which are
    averaged."""
    data = script.dataset(flags.rows)
    samplers = [
        DistributedSampler(
            data, num_replicas=ranks, rank=rank, shuffle=True, drop_last=flags.sampler_drops
        )
        for rank in range(ranks)
    ]
    loaders = [
        DataLoader(data, batch_size=flags.batch_size, sampler=sampler, drop_last=flags.drop_last)
        for sampler in samplers
    ]
    model = script.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    losses, rows = [], []
    for epoch in range(2):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        for batches in zip(*loaders, strict=True):
            optimizer.zero_grad()
            parts = [nn.functional.cross_entropy(model(x), y) for x, y, _ in batches]
            for part in parts:
                # optimizer_step sums the gradients over the ranks by 1 / world_size
                (part / ranks).backward()
            optimizer.step()
            losses.append(sum(part.item() for part in parts) / ranks)
            rows.append(torch.cat([numbers for _, _, numbers in batches]))
    x, y, _ = data.tensors
    accuracy = (model(x).argmax(1) == y).float().mean().item()
    return {
        "losses": losses,
        "rows": rows,
        "model": model.state_dict(),
        "accuracy": accuracy,
        "steps": len(loaders[0]),
    }


class TestTraining:
    """Losses, parameters, steps, rows of each step and accuracy are those of eight ranks in
    torch."""

    @pytest.mark.parametrize(
        "options",
        [
            [],
            ["--rows", "100", "--batch_size", "3"],
            ["--drop_last", "--rows", "100", "--batch_size", "3"],
            ["--sampler_drops", "--start", "spawn"],
            ["--sampler_drops", "--drop_last", "--rows", "95", "--batch_size", "4"],
        ],
        ids=["repeats", "a shorter last batch", "drop_last", "sampler_drops", "both drop"],
    )
    def test_as_eight_ranks(self, options: list[str], partitioner: None) -> None:
        self._check(options, RANKS)

    def test_one_device(self) -> None:
        self._check(["--start", "debug", "--rows", "6"], 1)

    def _check(self, options: list[str], ranks: int) -> None:
        script = loaded("mnist_launch.py")
        flags = script.parse(options)
        saved: dict[str, Any] = {"losses": [], "rows": []}
        script.start(flags, saved)
        expected = by_ranks(script, flags, ranks)
        assert saved["steps"] == expected["steps"] == len(saved["losses"]) / 2
        assert saved["losses"] == pytest.approx(expected["losses"], rel=2e-5)
        for rows, others in zip(saved["rows"], expected["rows"], strict=True):
            assert sorted(rows.tolist()) == sorted(others.tolist())
        for name, value in expected["model"].items():
            torch.testing.assert_close(saved["model"][name], value, rtol=1e-4, atol=1e-4)
        assert (
            saved["accuracy"] == pytest.approx(expected["accuracy"])
            and saved["total"] == flags.rows
        )


class TestLoader:
    """As many batches joined as there are devices; each row once; no more after `use_spmd`."""

    def test_split_over_all_devices(self, partitioner: None) -> None:
        def batch() -> torch.Tensor:
            (rows,) = MpDeviceLoader([torch.full((1, 3), float(i)) for i in range(RANKS)])
            return rows

        rows = launched(batch)
        assert rows[:, 0].tolist() == [*range(RANKS)]
        assert [shard.data.tolist() for shard in rows.local_shards] == [
            [[float(i)] * 3] for i in range(RANKS)
        ]

    def test_rows_by_index(self) -> None:
        """A script that shards its data by the index it gets sees every row once; the last batch
        has what is left."""
        rows = torch.arange(20.0)
        sizes: list[int] = []

        def train(index: int) -> None:
            seen = []
            for batch in MpDeviceLoader(rows[index :: xla_runtime.one()].split(2)):
                seen += batch.tolist()
                sizes.append(len(batch))
            assert seen == rows.tolist()

        one_process.spawn(train)
        assert sizes == [16, 4]
        one_process.spawn(train, nprocs=1)
        assert sizes[2:] == [2] * 10

    def test_generated(self) -> None:
        """A count of samples is divided by the number of ranks, as a script does it: without a
        rest."""

        def steps() -> tuple[int, int]:
            loader = MpDeviceLoader(SampleGenerator((torch.ones(2, 3), torch.ones(2)), 20))
            return len(loader), sum(x.shape == (2 * RANKS, 3) for x, _ in loader)

        assert launched(steps) == (2, 2) and len(MpDeviceLoader(SampleGenerator(1, 20))) == 20

    def test_structures(self) -> None:
        batches = [
            {
                "x": torch.full((2, 1), i),
                "names": [f"{i}a", f"{i}b"],
                "lr": 0.5,
                "n": np.full(1, i),
                "none": None,
                "more": argparse.Namespace(y=torch.full((1,), i)),
            }
            for i in range(RANKS)
        ]
        (batch,) = launched(lambda: [*MpDeviceLoader(batches)])
        assert (
            batch["x"].shape == (16, 1)
            and batch["names"][-2:] == ["7a", "7b"]
            and len(batch["names"]) == 16
        )
        assert (
            batch["lr"] == 0.5 and batch["n"].tolist() == [*range(RANKS)] and batch["none"] is None
        )
        assert batch["more"].y.tolist() == [*range(RANKS)]

    @pytest.mark.parametrize(
        "values",
        [
            [torch.ones(1, 2), torch.ones(1, 3)],
            [1, 2],
            [torch.tensor(1), torch.tensor(2)],
            [pack_sequence([torch.ones(2)]) for _ in range(2)],
        ],
    )
    def test_other_values(self, values: list[Any]) -> None:
        batches = [{"x": value} for value in values]
        with pytest.raises(
            ValueError, match=r"MpDeviceLoader: x cannot be joined over the 2 batches"
        ):
            launched(lambda: [*MpDeviceLoader(batches)])

    def test_sharded_by_the_script(self, mesh8: spmd.Mesh) -> None:
        spec = spmd.torch_xla.ShardingSpec(mesh8, ("fsdp",))
        rows = [torch.ones(8)] * 3

        def steps() -> int:
            optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1, device="xla"))], lr=0.1)
            return len(
                [
                    xla_model.optimizer_step(optimizer)
                    for _ in MpDeviceLoader(rows, input_sharding=spec)
                ]
            )

        assert launched(steps) == 3

        def marks() -> int:
            xla_runtime.use_spmd()
            return len([*MpDeviceLoader(rows)])

        assert launched(marks) == 3 == len([*MpDeviceLoader(rows)])

    def test_sampler_of_batches(self) -> None:
        data = TensorDataset(torch.arange(9))
        sampler = BatchSampler(
            DistributedSampler(data, num_replicas=1, rank=0, shuffle=False), 1, drop_last=False
        )
        loader = DataLoader(data, batch_sampler=sampler)
        batches = launched(lambda: [rows.tolist() for (rows,) in MpDeviceLoader(loader)])
        # the ranks of theirs repeat the first rows, too
        assert batches == [[*range(8)], [8, *range(7)]]


class TestCollectives:
    """Over the one rank: sums of counts, means of means are of all rows."""

    def test_values(self) -> None:
        def counts() -> list[Any]:
            total = torch.zeros((), device="xla")
            for batch in MpDeviceLoader([torch.ones(2)] * RANKS):
                total += batch.sum()
            xla_collectives.all_reduce("sum", [total], scale=1 / xla_runtime.one())
            return [total.item(), xla_model.mesh_reduce("total", total.item(), sum)]

        assert launched(counts) == [16, 16]

    def test_batch_norm(self, partitioner: None) -> None:
        """Statistics are those of the joined batch, as of SyncBatchNorm."""
        rows = torch.randn(16, 3)
        norm = nn.BatchNorm1d(3, device="xla")
        expected = nn.BatchNorm1d(3)
        (out,) = launched(lambda: [norm(batch) for batch in MpDeviceLoader(rows.split(2))])
        torch.testing.assert_close(out.cpu(), expected(rows), rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(
            norm.running_var.cpu(), expected.running_var, rtol=2e-5, atol=2e-5
        )


class TestNoLoader:
    """A step by `optimizer_step` whose batches were not joined warns once."""

    def test_warns(self) -> None:
        def train(index: int) -> None:
            weight = nn.Parameter(torch.ones(2, device="xla"))
            optimizer = torch.optim.SGD([weight], lr=0.1)
            for batch in [torch.ones(2), torch.ones(2)]:
                (weight * batch.to("xla")).sum().backward()
                xla_model.optimizer_step(optimizer)

        with pytest.warns(
            UserWarning, match="came by no MpDeviceLoader.*not the 8 of 8 devices"
        ) as seen:
            one_process.launch(train)
        assert len(seen) == 1 and seen[0].filename == __file__
        one_process.launch(train, debug_single_process=True)
        train(0)


class TestProcessGroup:
    """A group that the function makes ends with it, as with the processes of theirs."""

    @pytest.mark.parametrize("start", [launched, device_replicas.run_multiprocess])
    def test_ends(self, start: Any) -> None:
        def function() -> int:
            dist.init_process_group("xla", init_method="xla://")
            return dist.get_world_size()

        for _ in range(2):
            assert start(function) in (1, {0: 1})
            assert not dist.is_initialized()

    def test_of_the_script_stays(self) -> None:
        dist.init_process_group("xla", init_method="xla://")
        assert launched(dist.is_initialized) and dist.is_initialized()
        dist.destroy_process_group()
