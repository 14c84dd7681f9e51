"""The eight-bit floats: stored, moved and rounded as on CPU, bit for bit; products are in
`ops/test_matmul`."""

import io
import pickle
from collections.abc import Callable

import pytest
import torch
from support import run_script
from torch import nn

import spmd

pytestmark = pytest.mark.codegen

NARROW = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
# A NaN that is moved stays a NaN; XLA may choose another one of its bits.
IS_NAN = {
    torch.float8_e4m3fn: lambda bits: bits % 128 == 127,
    torch.float8_e5m2: lambda bits: bits % 128 > 124,
    torch.float8_e4m3fnuz: lambda bits: bits == 128,
    torch.float8_e5m2fnuz: lambda bits: bits == 128,
    torch.float8_e8m0fnu: lambda bits: bits == 255,
}


def every(dtype: torch.dtype) -> torch.Tensor:
    """Each number that a dtype has, as 16 rows of 16."""
    return torch.arange(256, dtype=torch.uint8).view(dtype).reshape(16, 16)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().view(torch.uint8)


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """All there is to round: every number of sixteen bits, ties and their neighbours, limits, and a
    wide spread."""
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return every(dtype).flatten()
    if not dtype.is_floating_point:
        return torch.arange(-70000, 70000).to(dtype)
    if dtype.itemsize == 2:
        return torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    wide = [every(narrow).float().sort()[0] for narrow in NARROW]
    ties = [((one[1:] + one[:-1]) / 2).flatten() for one in wide]
    near = [
        torch.nextafter(tie, torch.tensor(limit))
        for tie in ties
        for limit in (-torch.inf, torch.inf)
    ]
    top = torch.tensor(
        [0.0, -0.0, torch.inf, -torch.inf, torch.nan, -torch.nan, 448, 464, 465, 57344, 61440, 1e30]
    )
    halves = (torch.arange(1 << 16) << 16).to(torch.int32).view(torch.float32)
    spread = torch.randn(1 << 14) * torch.exp2(torch.randint(-30, 30, (1 << 14,)).float())
    made = torch.cat([*ties, *near, top, -top, halves, spread])
    # Half of the smallest e8m0 is subnormal in float32, which XLA takes for zero where it comes out
    # of a wider type.
    return (
        made
        if dtype == torch.float32
        else made[~((made != 0) & (made.abs() < 2.0**-126))].to(dtype)
    )


class TestCasts:
    """Rounding is torch's: ties to even, e4m3fn stops at its largest number or not, NaNs keep their
    sign."""

    @pytest.mark.parametrize("dtype", NARROW, ids=str)
    def test_to(self, dtype: torch.dtype, mesh8: spmd.Mesh) -> None:
        sources = [
            torch.float32,
            torch.float64,
            torch.bfloat16,
            torch.float16,
            torch.int64,
            torch.int8,
            torch.bool,
        ]
        cases = [numbers(source) for source in (*sources, *NARROW)]
        made = []
        for x in cases:
            x = x[: x.numel() // 8 * 8]
            made.append((x.to(dtype), spmd.mark_sharding(x.to("xla"), mesh8, ("fsdp",)).to(dtype)))
        spmd.sync()
        for x, (expected, actual) in zip(cases, made, strict=True):
            if x.dtype == dtype:
                continue  # nothing is rounded
            wrong = bits(actual) != bits(expected)
            assert not wrong.any(), f"from {x.dtype}: {x[: len(wrong)][wrong][:5]}"

    @pytest.mark.parametrize("dtype", NARROW, ids=str)
    def test_from(self, dtype: torch.dtype) -> None:
        x = every(dtype)
        for target in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            expected, actual = x.to(target), x.to("xla").to(target).cpu()
            assert torch.equal(actual.isnan(), expected.isnan())
            kept = ~expected.isnan()
            assert torch.equal(actual[kept], expected[kept])
            assert torch.equal(actual[kept].signbit(), expected[kept].signbit())

    def test_copy_and_fill(self) -> None:
        x = torch.tensor([500.0, -torch.inf, torch.nan, 0.3]).to("xla")
        y = torch.empty(4, dtype=torch.float8_e4m3fn, device="xla").copy_(x)
        # not so in torch 2.11
        stops = not torch.tensor(500.0).to(torch.float8_e4m3fn).float().isnan()
        assert bits(y).tolist() == ([0x7E, 0xFE, 0x7F, 0x2A] if stops else [0x7F, 0xFF, 0x7F, 0x2A])
        for made in (
            torch.full((4,), 0.3, dtype=torch.float8_e4m3fn, device="xla"),
            y.clone().fill_(0.3),
            torch.ones_like(y) * 0 + torch.tensor(0.3, device="xla").to(torch.float8_e4m3fn),
        ):
            assert bits(made).tolist() == [0x2A] * 4
        assert bits(torch.zeros(2, dtype=torch.float8_e8m0fnu, device="xla")).tolist() == [0, 0]


MOVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cat": lambda x: torch.cat([x, x.flip(0)]),
    "stack": lambda x: torch.stack([x, x], 1),
    "transpose": lambda x: x.t().contiguous(),
    "slice": lambda x: x[3:9, ::2].clone(),
    "index": lambda x: x[torch.tensor([5, 1, 5], device=x.device)],
    "index_select": lambda x: x.index_select(1, torch.tensor([2], device=x.device)),
    "where": lambda x: torch.where(torch.arange(16, device=x.device) > 7, x, x[0]),
    "roll": lambda x: x.roll(3, 0),
    "repeat": lambda x: x.repeat(2, 1),
    "pad": lambda x: nn.functional.pad(x, (1, 2), value=1.0),
    "embedding": lambda x: nn.functional.embedding(torch.tensor([3, 0], device=x.device), x),
    "setitem": lambda x: _set(x.clone()),
}


def _set(x: torch.Tensor) -> torch.Tensor:
    x[0] = 1.5
    x[:, 3] = x[:, 4]
    return x


class TestMoves:
    """An op that only moves numbers keeps their bits."""

    @pytest.mark.parametrize("dtype", NARROW, ids=str)
    def test_moves(self, dtype: torch.dtype, mesh8: spmd.Mesh) -> None:
        x = every(dtype)
        if dtype == torch.float8_e8m0fnu:
            # XLA selects, and gathers over a mesh, in float32, where the smallest number is
            # subnormal: zero to it.
            x = bits(x).clamp(min=1).view(dtype)
        held = spmd.mark_sharding(x.to("xla"), mesh8, ("fsdp", None))
        made = {name: (bits(move(x)), move(held)) for name, move in MOVES.items()}
        spmd.sync()
        for name, (expected, actual) in made.items():
            found, is_nan = bits(actual), IS_NAN[dtype]
            assert torch.equal(is_nan(found), is_nan(expected)), name
            assert torch.equal(found[~is_nan(found)], expected[~is_nan(expected)]), name

    @pytest.mark.parametrize("dtype", NARROW, ids=str)
    def test_views_of_the_bits(self, dtype: torch.dtype) -> None:
        x = every(dtype).to("xla")
        assert torch.equal(x.view(torch.uint8).cpu(), bits(every(dtype)))
        assert torch.equal(x.cpu().view(torch.uint8), bits(every(dtype)))
        whole = torch.arange(256, dtype=torch.uint8).to("xla").view(dtype)
        assert whole.dtype == dtype and torch.equal(
            bits(whole), torch.arange(256, dtype=torch.uint8)
        )


class TestSaving:
    """Files and pickles come back onto the device; torch's own plain pickle of these dtypes does
    not load."""

    @pytest.mark.parametrize("dtype", [*NARROW, torch.uint16, torch.uint64], ids=str)
    def test_save_and_pickle(self, dtype: torch.dtype) -> None:
        x = torch.arange(0, 256, dtype=torch.uint8).view(dtype).to("xla")
        x = x.reshape(2, -1)
        for tensor in (x, x.t(), x[1], nn.Parameter(x, requires_grad=False)):
            file = io.BytesIO()
            torch.save(tensor, file)
            file.seek(0)
            for loaded in (torch.load(file), pickle.loads(pickle.dumps(tensor))):
                assert (
                    loaded.device.type == "xla"
                    and loaded.dtype == dtype
                    and loaded.stride() == tensor.stride()
                )
                assert isinstance(loaded, nn.Parameter) == isinstance(tensor, nn.Parameter)
                expected = tensor.detach().cpu().contiguous().view(torch.uint8)
                assert torch.equal(loaded.detach().cpu().contiguous().view(torch.uint8), expected)

    def test_without_this_library(self, tmp_path) -> None:
        x = torch.arange(4.0).to("xla").to(torch.float8_e4m3fn)
        (tmp_path / "x.pickle").write_bytes(pickle.dumps({"x": x, "row": x[1:]}))
        printed = run_script(f"""
            import pickle, sys
            loaded = pickle.load(open({str(tmp_path / "x.pickle")!r}, "rb"))
            assert "spmd" not in sys.modules and "jax" not in sys.modules
            print(loaded["x"].float().tolist(), loaded["row"].float().tolist())
        """)
        assert printed.strip() == "[0.0, 1.0, 2.0, 3.0] [1.0, 2.0, 3.0]"
