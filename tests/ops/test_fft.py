"""Fourier transforms and their gradients against torch on CPU."""

import torch
from support import Batch


def real(z: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(z.resolve_conj())


def transforms(batch: Batch) -> None:
    x = torch.randn(8, 6, 5, dtype=torch.float64)
    for norm in ("backward", "ortho", "forward"):
        batch.case(f"rfft {norm}", lambda x, n=norm: real(torch.fft.rfft(x, norm=n)), x)
        batch.case(f"fft2 {norm}", lambda x, n=norm: real(torch.fft.fft2(x, norm=n)), x)
        batch.case(f"ifft {norm}", lambda x, n=norm: real(torch.fft.ifft(x, norm=n)), x)
        batch.case(
            f"there and back {norm}",
            lambda x, n=norm: torch.fft.irfftn(torch.fft.rfftn(x, norm=n), s=x.shape, norm=n),
            x,
        )
    batch.case("padded", lambda x: real(torch.fft.rfft(x, n=9, dim=1)), x)
    batch.case("cut", lambda x: real(torch.fft.fft(x, n=3, dim=1)), x)
    batch.case("irfft odd", lambda x: torch.fft.irfft(torch.complex(x, x.cos()), n=9), x)
    batch.case("fftn", lambda x: real(torch.fft.ifftn(torch.fft.fftn(torch.complex(x, -x)))), x)
    batch.case("hfft", lambda x: torch.fft.hfft(torch.complex(x, x)), x)


class TestTransforms:
    """Every normalization, padding and cutting, odd and even lengths."""

    def test_against_cpu(self):
        batch = Batch()
        transforms(batch)
        batch.case("float32", lambda x: real(torch.fft.rfft(x)), torch.randn(4, 8))
        batch.check()


class TestShortTime:
    """Windows over a signal, and back."""

    def test_stft_and_istft(self):
        def there_and_back(x):
            window = torch.hann_window(8, dtype=x.dtype, device=x.device)
            frames = torch.stft(x, 8, 4, window=window, return_complex=True)
            return real(frames), torch.istft(frames, 8, 4, window=window, length=32)

        batch = Batch()
        batch.case("stft", there_and_back, torch.randn(2, 32, dtype=torch.float64))
        batch.check()


class TestSharded:
    """Along a dim that is whole on each device, and along the one that is split."""

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        transforms(batch)
        batch.case(
            "split dim",
            lambda x: real(torch.fft.fft(x, dim=0)),
            torch.randn(8, 3, dtype=torch.float64),
        )
        batch.check()
