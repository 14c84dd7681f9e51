"""recipes/benchmarks/jax_mamba.py: JAX by hand computes what transformers' Mamba-2 does."""

import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional as F
from transformers.models.mamba2.modeling_mamba2 import causal_conv1d_fn, mamba2_chunk_scan

from recipes.benchmarks import jax_mamba

BATCH, LENGTH, CHUNK, HEADS, HEAD, GROUPS, STATE = 2, 32, 8, 4, 6, 2, 5


def test_the_convolution() -> None:
    x, window, bias = torch.randn(2, 9, 5), torch.randn(5, 4), torch.randn(5)
    expected = causal_conv1d_fn(x.transpose(1, 2), window, bias, activation="silu").transpose(1, 2)
    result = jax_mamba.convolved(*(jnp.asarray(value.numpy()) for value in (x, window, bias)))
    torch.testing.assert_close(F.silu(torch.from_numpy(np.array(result))), expected)


def test_the_scan() -> None:
    x, dt = torch.randn(BATCH, LENGTH, HEADS, HEAD), torch.rand(BATCH, LENGTH, HEADS)
    b, c = torch.randn(2, BATCH, LENGTH, GROUPS, STATE)
    decay, skip = -torch.rand(HEADS), torch.randn(HEADS)
    expected = mamba2_chunk_scan(x, dt, decay, b, c, CHUNK, D=skip)
    arrays = [jnp.asarray(value.numpy()) for value in (x, dt, b, c, decay)]
    chunks = (BATCH, LENGTH // CHUNK, CHUNK, GROUPS)
    values, steps, b, c = (
        array.reshape(*chunks, *rest)
        for array, rest in zip(arrays[:4], ((-1, HEAD), (-1,), (STATE,), (STATE,)), strict=True)
    )
    log = arrays[4].reshape(GROUPS, -1) * steps
    result = jax_mamba.scanned(values * steps[..., None], log, b, c)
    ours = torch.from_numpy(np.array(result)).reshape(x.shape) + skip[:, None] * x
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
