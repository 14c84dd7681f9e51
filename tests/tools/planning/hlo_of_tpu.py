"""Programs as a TPU's compiler writes them."""


def program(lines: str, before: str = "") -> str:
    """The text of a program of these lines, of which the last is the result."""
    most, mark, last = lines.rpartition("\n%")
    body = f"{most}\n  ROOT %{last}" if mark else f"  ROOT {last}"
    head = "ENTRY %main (x: f32[1024,1024]) -> f32[] {\n  %x = f32[1024,1024]{1,0} parameter(0)"
    return f"HloModule step\n\n{before}{head}\n{body}\n}}\n"


def part(number: int) -> str:
    """A fusion with a part of the all-gather of chain 0."""
    how = 'replica_groups={{0,1,2,3}}, dimensions={0}, frontend_attributes={chain_id="0"}'
    return f"""%part.{number} (p.{number}: f32[1024,1024]) -> f32[1024,1024] {{
  %p.{number} = f32[1024,1024]{{1,0}} parameter(0)
  %g.{number} = f32[4096,1024]{{1,0}} all-gather(%p.{number}), channel_id=7, {how}
  ROOT %n.{number} = f32[1024,1024]{{1,0}} negate(%p.{number})
}}

"""


GATHER = "all-gather(%p), replica_groups={{0,1,2,3}}, dimensions={0}"
CALLED = f"""%called (p: f32[1024,1024]) -> f32[4096,1024] {{
  %p = f32[1024,1024]{{1,0}} parameter(0)
  ROOT %g = f32[4096,1024]{{1,0}} {GATHER}
}}, execution_thread="sparsecore"

"""
_PAIR = "((f32[1024,1024]{1,0}), f32[4096,1024]{1,0}, u32[])"
# The line that starts a gather of %x and those that end it, in each form that a compiler writes;
# the computation of the gather is CALLED.
PAIRS = {
    "a start and a done": (
        (
            "%s = (f32[1024,1024]{1,0}, f32[4096,1024]{1,0}) "
            f"{GATHER.replace('(%p)', '-start(%x)')}"
        ),
        "%d = f32[4096,1024]{1,0} all-gather-done(%s)",
    ),
    "a call on the SparseCore": (
        f'%s = {_PAIR} call-start(%x), async_execution_thread="sparsecore", to_apply=%called',
        "%d = f32[4096,1024]{1,0} call-done(%s)",
    ),
    "an asynchronous computation": (
        f"%s = {_PAIR} async-start(%x), calls=%called",
        f"%u = {_PAIR} async-update(%s)\n%d = f32[4096,1024]{{1,0}} async-done(%u)",
    ),
}


# The blocks of 16 x 32 scores of a causal mask of 64 x 64, at most two of keys for 16 queries: 6 of
# 8.
CAUSAL = "{ { { 1, 0 }, { 1, 0 }, { 2, 1 }, { 2, 1 } } }"
_SIDES = ", ".join(rf"\"block_q{end}\": 16, \"block_kv{end}\": 32" for end in ("", "_dkv", "_dq"))


KINDS = f"%kinds = s8[1,4,2]{{2,1,0}} constant({CAUSAL})"


def attention(kinds: str = KINDS, *, is_joined: bool = False, sides: str = _SIDES) -> str:
    """The three kernels of splash attention: 8 heads of 64 queries and keys, 16 wide, values 32
    wide.

    kinds: the lines of %kinds, those of its blocks; "": a kernel without a mask. sides: the
    metadata of the calls. is_joined: two kernels, as one of them computes all gradients."""
    target = 'custom_call_target="tpu_custom_call"'
    path = f'frontend_attributes={{kernel_metadata={{\n"xprof_metadata":"{{{sides}}}"\n}}}}, '
    path += 'metadata={op_name="jit(step)/splash"}'
    names = ("%next, %kinds, " if kinds else "") + "%query, %key, %value"
    backward = f"""
%splash_mha_dkv_no_residuals.1 = bf16[2,64,16]{{2,1,0}} custom-call({names}), {target}, {path}
%splash_mha_dq_no_residuals.1 = bf16[8,64,16]{{2,1,0}} custom-call({names}), {target}, {path}"""
    if is_joined:
        results = "(bf16[4,8,64,16]{3,2,1,0}, bf16[2,64,16]{2,1,0}, bf16[2,64,32]{2,1,0})"
        backward = (
            f"\n%splash_mha_dkv_no_residuals.1 = {results} custom-call({names}), {target}, {path}"
        )
    return f"""{kinds}
%next = s8[1,4,2]{{2,1,0}} constant({{ {{ {{ 0, 0 }}, {{ 0, 0 }}, {{ 0, 1 }}, {{ 0, 1 }} }} }})
%query = bf16[8,64,16]{{2,1,0}} constant(0)
%key = bf16[2,64,16]{{2,1,0}} constant(0)
%value = bf16[2,64,32]{{2,1,0}} constant(0)
%splash_mha_fwd_residuals.1 = bf16[8,64,32]{{2,1,0}} custom-call({names}), {target}, {path}{backward}"""


def kernel(name: str, flops: int, scope: str = "") -> str:
    """A kernel that states so many operations, on rows of 16 and a weight of 16 x 64 for each of 4
    groups."""
    stated = f'backend_config={{"custom_call_config":{{"cost_estimate":{{"flops":{flops}}}}}}}'
    target = (
        'custom_call_target="tpu_custom_call", '
        f'metadata={{op_name="jit(spmd)/{scope}/pallas_call"}}'
    )
    return f"""%rows = bf16[4096,16]{{1,0}} constant(0)
%weight = bf16[4,16,64]{{2,1,0}} constant(0)
%{name}.1 = bf16[4096,64]{{1,0}} custom-call(%rows, %weight), {target}, {stated}"""


def between_slices(work: str) -> str:
    """A sum over two slices, and a line that is computed meanwhile."""
    how = (
        "is_host_transfer=true, "
        'frontend_attributes={_xla_host_transfer_rendezvous="all-reduce.1_0",_xla_megascale_'
        'target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}'
    )
    return f"""%token = token[] after-all()
%send = (f32[1024,1024]{{1,0}}, u32[], token[]) send(%x, %token), channel_id=6, {how}
%recv = (f32[1024,1024]{{1,0}}, u32[], token[]) recv(%token), channel_id=5, {how}
%sent = token[] send-done(%send), channel_id=6
%y = f32[1024,1024]{{1,0}} negate(%x), {work}
%got = (f32[1024,1024]{{1,0}}, token[]) recv-done(%recv), channel_id=5"""
