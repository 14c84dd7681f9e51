"""A jax that lacks what we use of its private parts: told so, the library takes the way that is
left."""

from support import run_script

# What that jax lacks is taken away before the library is imported.
WITHOUT_GSPMD = """
    import types, jax
    whole = jax._src.config
    class Without(types.ModuleType):
        def __getattr__(self, name):
            if name == "use_shardy_partitioner":
                raise AttributeError(name)
            return getattr(whole, name)
    jax._src.config = Without("config")  # as whoever imports it from now on sees it
    import spmd, torch
"""
WITHOUT_CUDNN = """
    from jax._src.cudnn import fused_attention_stablehlo
    del fused_attention_stablehlo._dot_product_attention_fwd_p
    import spmd, torch
"""


class TestWithoutGspmd:
    def test_shardy_is_the_default(self) -> None:
        printed = run_script(
            WITHOUT_GSPMD
            + """
    spmd.simulate(8)
    mesh = spmd.Mesh(range(8), (8,), ("x",))
    x = spmd.mark_sharding(torch.ones(8, 4).to("xla"), mesh, ("x", None))
    print(spmd.config.partitioner, (x + 1).sum().item())
"""
        )
        assert printed == "shardy 64.0\n"

    def test_gspmd_is_refused(self) -> None:
        printed = run_script(
            WITHOUT_GSPMD
            + """
    spmd.config.partitioner = "gspmd"
    try:
        (torch.ones(2).to("xla") + 1).tolist()
    except ValueError as error:
        print(error)
"""
        )
        assert printed.startswith("config.partitioner: jax ") and "set it to 'shardy'" in printed


class TestWithoutTheCudnnKernel:
    def test_attention_in_blocks(self) -> None:
        printed = run_script(
            WITHOUT_CUDNN
            + """
    q = torch.randn(1, 2, 16, 8, dtype=torch.bfloat16)
    made = torch.nn.functional.scaled_dot_product_attention(*[q.to("xla")] * 3).cpu()
    torch.testing.assert_close(
        made, torch.nn.functional.scaled_dot_product_attention(q, q, q), rtol=2e-2, atol=2e-2
    )
    print("right")
"""
        )
        assert printed == "right\n"
