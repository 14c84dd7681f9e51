"""Convolutions and their transposes of one, two and three dimensions, with all gradients, against
torch on CPU."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support import Batch, check
from torch.nn import functional as F

import spmd
from spmd.ops import sharded
from spmd.ops.conv import aten_convolution, aten_convolution_backward

PLAIN = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
SIZES = {1: (9,), 2: (7, 6), 3: (5, 5, 6)}

SETTINGS = [
    {},
    {"stride": 2},
    {"padding": 2},
    {"dilation": 2},
    {"groups": 2},
    {"stride": 2, "padding": 1, "dilation": 2, "groups": 2},
    {"stride": 3, "padding": 1},
]


def plain(batch: Batch, dtype: torch.dtype, rank: int) -> None:
    x = (torch.randn(8, 4, *SIZES[rank]) / 2).to(dtype)
    for settings in SETTINGS:
        groups = settings.get("groups", 1)
        weight, bias = (
            (torch.randn(6, 4 // groups, *[3] * rank) / 4).to(dtype),
            torch.randn(6).to(dtype),
        )
        kernel = weight[..., :2] if settings.get("dilation") else weight
        batch.case(
            f"conv{rank}d {settings}",
            lambda x, w, b, s=settings: PLAIN[rank](x, w, b, **s),
            x,
            kernel,
            bias,
        )


def transposed(batch: Batch, dtype: torch.dtype, rank: int) -> None:
    x = (torch.randn(8, 4, *SIZES[rank]) / 2).to(dtype)
    for settings in [*SETTINGS, {"stride": 2, "output_padding": 1, "padding": 1}]:
        groups = settings.get("groups", 1)
        weight, bias = (
            (torch.randn(4, 6 // groups, *[3] * rank) / 4).to(dtype),
            torch.randn(6).to(dtype),
        )
        batch.case(
            f"conv_transpose{rank}d {settings}",
            lambda x, w, b, s=settings: TRANSPOSED[rank](x, w, b, **s),
            x,
            weight,
            bias,
        )


class TestPlain:
    """Stride, padding, dilation and groups."""

    @pytest.mark.parametrize("rank", [1, 2, 3])
    def test_float32(self, rank):
        batch = Batch()
        plain(batch, torch.float32, rank)
        batch.check()

    @pytest.mark.parametrize("axis", [None, "fsdp"])
    def test_fewer_pixels_than_the_window_has(self, axis: str | None, mesh8: spmd.Mesh) -> None:
        batch = Batch() if axis is None else Batch(mesh=mesh8, axis=axis)
        for size, settings in (
            ((2, 2), {"padding": 1}),
            ((1, 3), {"padding": 1, "stride": 2}),
            ((3, 2), {"padding": 2, "dilation": 2}),
            ((4, 4), {}),
        ):
            x, weight = torch.randn(8, 8, *size), torch.randn(16, 8, 3, 3) / 4
            batch.case(
                f"{size} {settings}", lambda x, w, s=settings: F.conv2d(x, w, **s), x, weight
            )
            name = f"transposed {size} {settings}"
            batch.case(
                name,
                lambda x, w, s=settings: F.conv_transpose2d(x, w, **s),
                x,
                weight.mT[:8].clone(),
            )
        x, weight = torch.randn(8, 4, 2, 1, 2), torch.randn(8, 4, 3, 3, 3) / 4
        batch.case("three dims", lambda x, w: F.conv3d(x, w, padding=1), x, weight)
        batch.case(
            "one dim",
            lambda x, w: F.conv1d(x, w, padding=1),
            x[..., 0, 0].clone(),
            weight[..., 0, 0].clone(),
        )
        half = x.bfloat16(), weight.bfloat16()
        batch.case("bfloat16", lambda x, w: F.conv3d(x, w, padding=1), *half, gradient=False)
        batch.check()

    @pytest.mark.parametrize("axis", [None, "fsdp"])
    def test_groups(self, axis: str | None, mesh8: spmd.Mesh) -> None:
        """A CPU takes them one element of the window after the other: one feature each, several, a
        large window."""
        batch = Batch() if axis is None else Batch(mesh=mesh8, axis=axis)
        x = torch.randn(8, 8, 9, 7)
        for groups, features, window, settings in (
            (8, 8, (3, 3), {"padding": 1}),
            (8, 16, (3, 3), {"stride": 2, "padding": 1}),
            (8, 8, (2, 3), {"stride": (1, 3), "dilation": (2, 1)}),
            (8, 8, (7, 7), {"padding": 3}),
            (8, 8, (9, 7), {"padding": 1}),  # too large: XLA's convolution
            (4, 12, (3, 3), {"stride": 2, "padding": 2, "dilation": 2}),
            (2, 4, (3, 1), {}),
        ):
            name, how = (
                f"{groups} groups, {features} features, {window}, {settings}",
                {**settings, "groups": groups},
            )
            weight, bias = torch.randn(features, 8 // groups, *window) / 4, torch.randn(features)
            batch.case(name, lambda x, w, b, how=how: F.conv2d(x, w, b, **how), x, weight, bias)
            weight = torch.randn(8, features // groups, *window) / 4
            batch.case(
                f"transposed {name}",
                lambda x, w, how=how: F.conv_transpose2d(x, w, **how),
                x,
                weight,
            )
        line, filters = torch.randn(8, 8, 11), torch.randn(8, 1, 4) / 4
        batch.case(
            "causal", lambda x, w: F.conv1d(x, w, padding=3, groups=8)[..., :-3], line, filters
        )
        cube, cubes = torch.randn(8, 8, 4, 3, 5), torch.randn(8, 1, 3, 3, 3) / 4
        batch.case("three dims", lambda x, w: F.conv3d(x, w, padding=1, groups=8), cube, cubes)
        batch.case(
            "float64", lambda x, w: F.conv1d(x, w, groups=8), line.double(), filters.double()
        )
        half = line.bfloat16(), filters.bfloat16()
        batch.case("bfloat16", lambda x, w: F.conv1d(x, w, groups=8), *half, gradient=False)
        batch.check()

    @pytest.mark.parametrize("axis", [None, "fsdp"])
    def test_windows_of_one_element(self, axis: str | None, mesh8: spmd.Mesh) -> None:
        """A CPU computes them as products, their gradients as well."""
        batch = Batch() if axis is None else Batch(mesh=mesh8, axis=axis)
        for size, settings in (
            ((5, 4), {}),
            ((5, 4), {"stride": 2}),
            ((5, 4), {"stride": (1, 3), "padding": (2, 0)}),
            ((24, 24), {}),  # of many pixels the gradient of the kernel is a sum over images
            ((24, 24), {"stride": 2, "padding": 1, "groups": 2}),
        ):
            x, groups = torch.randn(8, 4, *size) / 2, settings.get("groups", 1)
            weight = torch.randn(4, 4 // groups, 1, 1) / 4
            batch.case(
                f"{size} {settings}", lambda x, w, s=settings: F.conv2d(x, w, **s), x, weight
            )
            name = f"transposed {size} {settings}"
            batch.case(
                name,
                lambda x, w, s=settings: F.conv_transpose2d(x, w, output_padding=0, **s),
                x,
                weight,
            )
        line, filters = torch.randn(8, 4, 3), torch.randn(2, 4, 1)
        batch.case("one dim", lambda x, w: F.conv1d(x, w, stride=2), line, filters)
        batch.case("float64", lambda x, w: F.conv1d(x, w), line.double(), filters.double())
        batch.case(
            "bfloat16",
            lambda x, w: F.conv1d(x, w),
            line.bfloat16(),
            filters.bfloat16(),
            gradient=False,
        )
        batch.check()

    @pytest.mark.parametrize("axis", [None, "fsdp"])
    def test_gradients_of_few_and_many_pixels(self, axis: str | None, mesh8: spmd.Mesh) -> None:
        """A stride that leaves fewer pixels than the window has, and a kernel's gradient image by
        image."""
        batch = Batch() if axis is None else Batch(mesh=mesh8, axis=axis)
        x, weight = torch.randn(8, 4, 5, 6), torch.randn(8, 4, 3, 3) / 4
        batch.case(
            "few", lambda x, w: F.conv2d(x, w, stride=2, padding=(1, 0), dilation=(1, 2)), x, weight
        )
        batch.case("few, uneven", lambda x, w: F.conv2d(x, w, stride=(4, 3)), x, weight)
        x, weight = torch.randn(8, 64, 24, 26) / 32, torch.randn(128, 64, 2, 2) / 8
        batch.case("many", lambda x, w: F.conv2d(x, w, padding=1, dilation=2), x, weight)
        batch.check()

    @pytest.mark.parametrize("axis", [None, "fsdp"])
    def test_groups_of_many_pixels_or_features(self, axis: str | None, mesh8: spmd.Mesh) -> None:
        """One device takes large images one after the other, few large groups each by itself."""
        batch = Batch() if axis is None else Batch(mesh=mesh8, axis=axis)
        for channels, features, groups, size, window, settings in (
            (6, 6, 6, 20, (3, 3), {"padding": 1}),
            (6, 12, 6, 33, (2, 2), {"stride": 2, "dilation": (2, 1)}),
            (8, 4, 2, 18, (3, 3), {"padding": 1}),
            (24, 12, 3, 6, (3, 3), {"padding": 1, "stride": 2}),
            (24, 48, 3, 5, (1, 1), {}),
        ):
            how = {**settings, "groups": groups}
            x, weight = (
                torch.randn(8, channels, size, size),
                torch.randn(features, channels // groups, *window) / 8,
            )
            batch.case(f"{x.shape} {how}", lambda x, w, how=how: F.conv2d(x, w, **how), x, weight)
            weight = torch.randn(channels, features // groups, *window) / 8
            batch.case(
                f"transposed {x.shape} {how}",
                lambda x, w, how=how: F.conv_transpose2d(x, w, **how),
                x,
                weight,
            )
        batch.check()

    def test_groups_do_not_meet(self) -> None:
        """An infinity stays in its group."""
        x, weight = torch.ones(1, 32, 4, 4), torch.ones(2, 16, 3, 3)
        x[:, :16] = torch.inf
        made = F.conv2d(x.to("xla"), weight.to("xla"), groups=2).cpu()
        torch.testing.assert_close(made, F.conv2d(x, weight, groups=2))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
    def test_other_dtypes(self, dtype):
        batch = Batch()
        x, weight = (torch.randn(2, 3, 5, 5) / 2).to(dtype), (torch.randn(4, 3, 3, 3) / 4).to(dtype)
        batch.case(
            "conv2d",
            lambda x, w: F.conv2d(x, w, stride=2, padding=1),
            x,
            weight,
            gradient=dtype == torch.float64,
        )
        batch.check()

    def test_same_padding_no_batch_and_depthwise(self):
        batch = Batch()
        x, weight = torch.randn(4, 6, 6), torch.randn(8, 1, 3, 3)
        batch.case("depthwise", lambda x, w: F.conv2d(x[None], w, groups=4), x, weight)
        batch.case("same", lambda x, w: F.conv2d(x[None], w, groups=4, padding="same"), x, weight)
        batch.case("no batch", lambda x, w: F.conv2d(x, w, groups=4), x, weight)
        batch.check()


class TestTransposed:
    """The same, and output padding."""

    @pytest.mark.parametrize("rank", [1, 2, 3])
    def test_float32(self, rank):
        batch = Batch()
        transposed(batch, torch.float32, rank)
        batch.check()


class TestMemoryFormat:
    """An input or a weight whose channels lie last gives a result whose channels lie last."""

    @pytest.mark.parametrize("which", ["input", "weight", "both", "neither"])
    @pytest.mark.parametrize("kind", [torch.nn.Conv2d, torch.nn.ConvTranspose2d, torch.nn.Conv3d])
    def test_strides(self, kind, which):
        form = torch.channels_last if kind is not torch.nn.Conv3d else torch.channels_last_3d
        module = kind(4, 5, 3)
        x = torch.ones(2, 4, *[6] * (module.weight.dim() - 2))
        if which in ("input", "both"):
            x = x.contiguous(memory_format=form)
        if which in ("weight", "both"):
            module = module.to(memory_format=form)
        made = module.to("xla")(x.to("xla"))  # CPU without oneDNN forgets it for three dims
        assert made.is_contiguous(
            memory_format=torch.contiguous_format if which == "neither" else form
        )


class TestOthers:
    """Frozen weights ask for fewer gradients; second gradients; time-batch-channel layout."""

    def test_gradient_of_the_weight_alone(self):
        batch = Batch()
        x = torch.randn(2, 3, 5, 5)
        batch.case("weight", lambda w: F.conv2d(x.to(w.device), w), torch.randn(4, 3, 3, 3))
        batch.case("input", lambda i: F.conv2d(i, torch.ones(4, 3, 3, 3, device=i.device)), x)
        batch.check()

    def test_second_gradient(self):
        def penalty(x, weight):
            (grad,) = torch.autograd.grad(F.conv2d(x, weight).square().sum(), x, create_graph=True)
            return grad.square().mean()

        batch = Batch()
        batch.case("penalty", penalty, torch.randn(2, 2, 4, 4) / 4, torch.randn(3, 2, 2, 2) / 4)
        batch.check()

    def test_conv_tbc(self):
        batch = Batch()
        batch.case(
            "conv_tbc",
            lambda x, w, b: torch.conv_tbc(x, w, b, 1),
            *map(torch.randn, ((5, 2, 3), (3, 3, 4), (4,))),
            gradient=False,
        )
        batch.check()


class TestOtherPlatforms:
    """Lowerings that are faster on a CPU alone are in no other program."""

    def test_convolutions_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sharded, "platform", lambda: "tpu")
        settings = ([1, 1], [0, 0], [1, 1], False, [0, 0])
        for groups, size, window in ((1, 4, 1), (1, 2, 2), (4, 20, 3), (2, 20, 9)):
            shapes = (2, 4, size, size), (4, 4 // groups, window, window)
            x, kernel = (jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)
            made = jax.ShapeDtypeStruct((2, 4, size - window + 1, size - window + 1), "float32")

            def forward(x, kernel, groups=groups, made=made):
                return aten_convolution(x, kernel, None, *settings, groups, returns=made)

            def backward(grad, x, kernel, groups=groups):
                masks = [True, True, False]
                return aten_convolution_backward(
                    grad, x, kernel, None, *settings, groups, masks, returns=(x, kernel, None)
                )

            for function, operands, count in (
                (forward, (x, kernel), 1),
                (backward, (made, x, kernel), 2),
            ):
                text = jax.jit(function).lower(*operands).as_text()
                assert text.count("stablehlo.convolution") == count, text
                assert "case" not in text and "dot_general" not in text, text

    @pytest.mark.parametrize("how", [{"padding": 3}, {"stride": 2, "dilation": 2}, {"padding": 1}])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_short_depthwise_windows(
        self, how: dict[str, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A TPU adds the elements of Mamba's windows, one after the other: its program has no
        convolution, and torch's values."""
        x, w = (torch.randn(shape).to(dtype).double() for shape in ((2, 48, 270), (48, 1, 4)))
        expected = F.conv1d(x.requires_grad_(), w.requires_grad_(), groups=48, **how)
        grad = torch.randn_like(expected).to(dtype).double()
        expected.backward(grad)
        defaults = {"stride": 1, "padding": 0, "dilation": 1}
        settings = (*([value] for value in (defaults | how).values()), False, [0], 48)
        name = str(dtype).removeprefix("torch.")
        arrays = [jnp.asarray(y.detach().numpy(), name) for y in (x, w, grad)]
        monkeypatch.setattr(sharded, "platform", lambda: "tpu")

        def both(x, w, grad):
            result = aten_convolution(x, w, None, *settings, returns=grad)
            masks = [True, True, False]
            grads = aten_convolution_backward(
                grad, x, w, None, *settings, masks, returns=(x, w, None)
            )
            return result, *grads[:2]

        both = jax.jit(both)
        assert "stablehlo.convolution" not in both.lower(*arrays).as_text()
        for ours, theirs in zip(both(*arrays), (expected, x.grad, w.grad), strict=True):
            check(torch.from_numpy(np.array(ours, "float32")).to(dtype), theirs.to(dtype))


def check_grouped(x, w, made, x_grad, w_grad):
    """Compares a convolution in eight groups, and its gradients, with torch's."""
    x.requires_grad_()
    w.requires_grad_()
    expected = F.conv2d(torch.relu(x), w, padding=1, groups=8)
    expected.square().sum().backward()
    for one, other in ((made, expected), (x_grad, x.grad), (w_grad, w.grad)):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-4)


class TestSharded:
    """Batch split over eight devices; groups as well."""

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        plain(batch, torch.float32, 2)
        batch.check()

    def test_height(self, mesh8):
        """The rows of an image split, so that kernels reach over to the neighbour."""
        batch = Batch(mesh=mesh8, axis="fsdp")
        for height in (16, 24):
            x = torch.randn(height, 2, 4, 7) / 2
            for size, settings in (
                (3, {"padding": 1}),
                (3, {"padding": 1, "stride": 2}),
                (1, {"stride": 2}),
                (7, {"padding": 3}),
            ):
                for convolve in (F.conv2d, F.conv_transpose2d):
                    batch.case(
                        f"{convolve.__name__} {size} {settings} of {height}",
                        lambda x, w, convolve=convolve, how=settings: convolve(
                            x.permute(1, 2, 0, 3), w, **how
                        ),
                        x,
                        torch.randn(4, 4, size, size) / 4 / size,
                    )
        batch.check()

    def test_features_of_groups(self, mesh8):
        """Groups whose features are split stay one convolution, and equal torch's."""
        x, w = torch.randn(2, 64, 5, 5), torch.randn(64, 8, 3, 3) / 8
        ours, weight = x.to("xla").requires_grad_(), w.to("xla").requires_grad_()
        spmd.mark_sharding(ours, mesh8, (None, "fsdp", None, None))
        spmd.mark_sharding(weight, mesh8, ("fsdp", None, None, None))
        made = F.conv2d(torch.relu(ours), weight, padding=1, groups=8)
        made.square().sum().backward()
        check_grouped(x, w, made, ours.grad, weight.grad)

    def test_height_of_groups(self, mesh8):
        """Sharded rows are one exchange with the neighbours, not one for each element of the
        window."""
        x, w = torch.randn(2, 8, 16, 6), torch.randn(8, 1, 3, 3)
        ours, weight = x.to("xla").requires_grad_(), w.to("xla").requires_grad_()
        spmd.mark_sharding(ours, mesh8, (None, None, "fsdp", None))
        made = F.conv2d(torch.relu(ours), weight, padding=1, groups=8)
        made.square().sum().backward()
        spmd.sync()
        check_grouped(x, w, made, ours.grad, weight.grad)
        assert spmd.metrics.compiles()[-1].collectives["collective-permute"] <= 8, spmd.explain()


class TestPixelsOverOneAxis:
    """Images and kernels split in space over one axis of two, the other one holding copies."""

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_values_and_gradients(self, partitioner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "partitioner", partitioner)
        mesh = spmd.Mesh(range(8), (2, 4), ("a", "b"))
        images = [
            (None, None, None, "a"),
            (None, None, None, "b"),
            (None, "a", None, None),
            ("a", None, None, "b"),
        ]
        kernels = [
            (None,) * 4,
            ("a", None, None, None),
            ("b", None, None, None),
            (None, None, None, "a"),
        ]
        compared = []
        for size in (8, 7):
            x, kernel = torch.randn(4, 6, size, size), torch.randn(8, 6, 3, 3)
            for image_spec, kernel_spec, is_transposed in itertools.product(
                images, kernels, (False, True)
            ):
                weight = kernel.transpose(0, 1).contiguous() if is_transposed else kernel
                results = []
                for device in ("cpu", "xla"):
                    leaves = [tensor.clone().to(device) for tensor in (x, weight)]
                    if device == "xla":
                        spmd.mark_sharding(leaves[0], mesh, image_spec)
                        spmd.mark_sharding(leaves[1], mesh, kernel_spec)
                    function = F.conv_transpose2d if is_transposed else F.conv2d
                    y = function(*(leaf.requires_grad_() for leaf in leaves), padding=1)
                    results.append([y, *torch.autograd.grad(y.sin().sum(), leaves)])
                compared.append((f"{size}, {image_spec}, {kernel_spec}, {is_transposed}", *results))
        spmd.sync()
        wrong = [
            name
            for name, expected, actual in compared
            if not all(
                torch.allclose(b.cpu(), a, 1e-4, 1e-4)
                for a, b in zip(expected, actual, strict=True)
            )
        ]
        assert not wrong, "\n".join(wrong)

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_split_features(self, partitioner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pixels over all devices under a kernel in parts, and unsplit ones of which the result is
        split."""
        monkeypatch.setattr(spmd.config, "partitioner", partitioner)
        mesh = spmd.Mesh(range(8), (2, 4), ("a", "b"))
        specs = [
            ((None, None, ("b", "a")), (None, "a", None), None),
            ((None, None, ("a", "b")), (None, "b", None), None),
            (("a", None, "b"), (None, "b", None), None),
            ((None, "b", None), ("b", None, None), (None, None, "a")),
        ]
        shapes = [(2, 10, 7), (1, 6, 12)]
        compared = []
        for case in itertools.product(specs, (False, True), shapes):
            (image_spec, kernel_spec, result_spec), is_transposed, shape = case
            x, kernel = torch.randn(shape), torch.randn(5, shape[1], 3)
            weight = kernel.transpose(0, 1).contiguous() if is_transposed else kernel
            weight_spec = (kernel_spec[1], kernel_spec[0], None) if is_transposed else kernel_spec
            results = []
            for device in ("cpu", "xla"):
                leaves = [tensor.clone().to(device) for tensor in (x, weight)]
                if device == "xla":
                    spmd.mark_sharding(leaves[0], mesh, image_spec)
                    spmd.mark_sharding(leaves[1], mesh, weight_spec)
                function = F.conv_transpose1d if is_transposed else F.conv1d
                y = function(*(leaf.requires_grad_() for leaf in leaves))
                if device == "xla" and result_spec:
                    y = spmd.mark_sharding(y, mesh, result_spec)
                results.append([y, *torch.autograd.grad(y.sin().sum(), leaves)])
            compared.append((str(case), *results))
        spmd.sync()
        wrong = [
            name
            for name, expected, actual in compared
            if not all(
                torch.allclose(b.cpu(), a, 1e-4, 1e-4)
                for a, b in zip(expected, actual, strict=True)
            )
        ]
        assert not wrong, "\n".join(wrong)
