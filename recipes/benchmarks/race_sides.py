"""A side of the race in a process of its own: it trains or decodes on this machine's device, and
writes its figures.

    python -m recipes.benchmarks.race_sides gpt torch.compile --folder out/race
    python -m recipes.benchmarks.race_sides llama compiled --folder out/race --target h200:1

Called by `race.py`; `--target` plans. Lives here: the models, and the step as written for one
device; JAX's are in `race_jax.py`. All sides of a part read one file of weights in float32 and the
same batches. A step is timed from tokens on the host to the loss there. Torch's sides compute under
autocast to bfloat16; JAX casts float32 masters to bfloat16, and has its residuals in it, too, which
autocast has in float32.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from recipes.gpt import GPT, GPTConfig, cross_entropy

SIDES = {
    "gpt": ("compiled", "torch.compile", "JAX by hand", "lazy"),
    "llama": ("compiled", "torch.compile", "JAX by hand", "lazy", "FSDP, compiled"),
    "decode": ("xla", "torch", "JAX by hand"),
}
WARM, TIMED, LEARNING_RATE = 3, 10, 1e-4
# Dense bfloat16 operations a second, from NVIDIA's data sheets of the SXM parts.
PEAKS = {"H100": 989.4e12, "H200": 989.4e12}
Figures = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """Shapes of the three parts; `dry` are those of a CPU."""

    gpt: GPTConfig
    gpt_batch: int
    llama: dict[str, int]
    batch: int
    sequence: int
    prompt: int
    tokens: int

    @property
    def llama_config(self) -> Any:
        import transformers

        return transformers.LlamaConfig(
            **self.llama, use_cache=False, bos_token_id=None, eos_token_id=None
        )


_LLAMA_1B = {
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128_256,
    "max_position_embeddings": 4096,
}
_DRY_LLAMA = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 64,
}
FULL = Sizes(GPTConfig(12, 768, 12, 1024, 50_304), 16, _LLAMA_1B, 4, 4096, 16, 64)
DRY = Sizes(GPTConfig(2, 32, 2, 32, 256), 2, _DRY_LLAMA, 2, 32, 4, 8)


class Side:
    """The options of a side, and the file of its figures, which is written after each stage."""

    def __init__(self, options: argparse.Namespace):
        self.part, self.name, self.folder = options.part, options.side, Path(options.folder)
        self.is_dry, self.target, self.waits = options.dry_run, options.target, options.wait
        self.sizes = DRY if options.dry_run else FULL
        self.figures: Figures = {"part": self.part, "side": self.name}
        self.started = time.perf_counter()

    def keep(self, **figures: Any) -> None:
        self.figures |= figures
        (self.folder / f"{self.part}-{self.name.replace(' ', '-')}.json").write_text(
            json.dumps(self.figures)
        )

    def wait(self) -> None:
        """Ends when the side before has left the device: `race.py` writes a file then."""
        signal, parent = self.folder / f"turn-{self.part}-{self.name}", os.getppid()
        while self.waits and not signal.exists():
            if os.getppid() != parent:
                sys.exit("the race has ended")
            time.sleep(0.05)
        self.started = time.perf_counter()

    # --- models and batches -----------------------------------------------------------------------

    def network(self) -> nn.Module:
        """The model of the part, with torch's initial values."""
        if self.part == "gpt":
            return GPT(self.sizes.gpt)
        import transformers

        return transformers.LlamaForCausalLM(self.sizes.llama_config)

    @property
    def weights(self) -> Path:
        return self.folder / ("gpt.safetensors" if self.part == "gpt" else "llama.safetensors")

    def loaded(self, device: str) -> nn.Module:
        """The model on a device, with the weights of all sides."""
        with torch.device("meta"):
            model = self.network()
        model.to_empty(device="cpu")
        model.load_state_dict(load_file(self.weights))
        if self.part != "gpt":
            # `to_empty` leaves buffers that no state dict has without values: the frequencies of
            # positions.
            model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
        self.wait()
        return model.to(device)

    def batches(self) -> list[Tensor]:
        """Tokens [batch, sequence] on the host; the model sees four batches, one after another."""
        shape, vocabulary = (
            ((self.sizes.gpt_batch, self.sizes.gpt.sequence + 1), self.sizes.gpt.vocabulary)
            if self.part == "gpt"
            else ((self.sizes.batch, self.sizes.sequence), self.sizes.llama["vocab_size"])
        )
        draw = torch.Generator().manual_seed(0)
        return [torch.randint(vocabulary, shape, generator=draw) for _ in range(4)]

    def step_flops(self) -> float:
        """Operations of a step without recomputation: 6 a weight of a product and token, and half
        of the scores."""
        if self.part == "gpt":
            config = self.sizes.gpt
            layers, width, length, rows = (
                config.layers,
                config.width,
                config.sequence,
                self.sizes.gpt_batch,
            )
            products = layers * 12 * width**2 + config.vocabulary * width
        else:
            sizes = self.sizes.llama
            layers, width, length, rows = (
                sizes["num_hidden_layers"],
                sizes["hidden_size"],
                self.sizes.sequence,
                self.sizes.batch,
            )
            keys = width * sizes["num_key_value_heads"] // sizes["num_attention_heads"]
            layer = 2 * width * (width + keys) + 3 * width * sizes["intermediate_size"]
            products = layers * layer + sizes["vocab_size"] * width
        return float(rows * length * (6 * products + 6 * layers * length * width))

    # --- a training step --------------------------------------------------------------------------

    def timed(
        self, step: Callable[[Tensor], float], peak: Callable[[], int | None], kind: str
    ) -> None:
        """Runs the steps and keeps the figures. peak: bytes."""
        batches, losses, seconds = self.batches(), [], []
        for number in range(WARM + TIMED):
            started = time.perf_counter()
            losses.append(step(batches[number % len(batches)]))
            seconds.append(time.perf_counter() - started)
            if number == 0:
                self.keep(
                    device=kind,
                    first=seconds[0],
                    loss=losses[0],
                    start=time.perf_counter() - self.started,
                )
        median = statistics.median(seconds[WARM:])
        top = next((flops for name, flops in PEAKS.items() if name in kind), None)
        self.keep(
            step=median,
            fastest=min(seconds[WARM:]),
            slowest=max(seconds[WARM:]),
            losses=losses,
            tokens=self.batches()[0][:, : self.length].numel() / median,
            mfu=None if top is None else self.step_flops() / median / top,
            peak=peak(),
        )

    @property
    def length(self) -> int:
        return self.sizes.gpt.sequence if self.part == "gpt" else self.sizes.sequence

    def torch_loss(self, model: nn.Module, tokens: Tensor) -> Tensor:
        if self.part == "gpt":
            return cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
        loss: Tensor = model(input_ids=tokens, labels=tokens).loss
        return loss

    def torch_step(
        self, model: Any, device: str, wrap: Callable[[Any], Any] = lambda loss: loss, **how: Any
    ) -> Callable[[Tensor], Tensor]:
        """The training step as it is written for one device; the same for torch and for this
        library.

        wrap: what `torch.compile` does to the function of a loss. how: options of AdamW.
        """
        if self.part == "llama":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, **how)
        loss_of = wrap(partial(self.torch_loss, model))

        def step(tokens: Tensor) -> Tensor:
            with torch.autocast(device, dtype=torch.bfloat16):
                loss: Tensor = loss_of(tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    def by_torch(self) -> None:
        """`torch.compile` of model and loss, SDPA's kernels with cuDNN's first, and the fused
        AdamW."""
        device = "cpu" if self.is_dry else "cuda"
        torch.set_float32_matmul_precision("high")
        torch.backends.cuda.matmul.allow_tf32 = True
        model = self.loaded(device)
        compiled = partial(torch.compile, backend="aot_eager" if self.is_dry else "inductor")
        step = self.torch_step(model, device, compiled, fused=True)
        kind = "CPU" if self.is_dry else torch.cuda.get_device_name()
        names = "CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"
        with sdpa_kernel([getattr(SDPBackend, name) for name in names], set_priority=True):
            self.timed(
                lambda tokens: step(tokens.to(device)).item(),
                lambda: None if self.is_dry else torch.cuda.max_memory_allocated(),
                kind,
            )

    def by_us(self, *, is_compiled: bool, is_wrapped: bool = False) -> None:
        """The same step on xla, by `spmd.compile` or recorded; wrapped: FSDP's bfloat16 in place of
        autocast."""
        import spmd

        if self.is_dry and self.target is None:
            spmd.simulate(1)
        if self.target is None:
            model = self.loaded("xla")
        else:
            with torch.device("xla"):
                model = self.network()
        if is_wrapped:
            import fsdp

            precision = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
            mesh = spmd.Mesh(range(1), (1,), ("fsdp",), target=self.target)
            units = {
                type(module) for name, module in model.named_modules() if name == "model.layers.0"
            }
            policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls=units)
            model.gradient_checkpointing_enable({"use_reentrant": False})
            wrapped = fsdp.FullyShardedDataParallel(
                model, mesh, auto_wrap_policy=policy, mp_policy=precision
            )
            optimizer = torch.optim.AdamW(wrapped.parameters(), lr=LEARNING_RATE)

            def step(tokens: Tensor) -> Tensor:
                loss = self.torch_loss(wrapped, tokens)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss.detach()

        else:
            step = self.torch_step(model, "xla")
        if self.target is not None:
            self.planned(spmd.plan(step, self.batches()[0].to("xla"), target=self.target))
            return
        if is_compiled:
            step = spmd.compile(step)
        self.timed(lambda tokens: step(tokens.to("xla")).item(), _peak_of_jax, _kind_of_jax())
        self.keep(programs=spmd.metrics.num_compiles())

    def planned(self, plan: Any) -> None:
        self.keep(
            target=self.target,
            step=plan.seconds,
            peak=plan.peak,
            flops=plan.flops,
            terms={term.name: term.seconds for term in plan.terms},
            compile=plan.compile_seconds,
        )

    def by_jax(self) -> None:
        """Hand-written JAX, its state donated."""
        import jax

        from recipes.benchmarks import race_jax

        weights = {name: value.numpy() for name, value in load_file(self.weights).items()}
        self.wait()
        if self.part == "gpt":
            program = race_jax.gpt(weights, self.sizes.gpt.heads, LEARNING_RATE, is_cpu=self.is_dry)
        else:
            program = race_jax.llama(
                weights,
                self.sizes.llama_config,
                (self.sizes.batch, self.sizes.sequence),
                LEARNING_RATE,
                is_cpu=self.is_dry,
            )
        state = program.state

        def step(tokens: Tensor) -> float:
            nonlocal state
            state, loss = program.step(
                state, *map(jax.device_put, program.batch(tokens.numpy().astype(np.int32)))
            )
            return float(loss)

        self.timed(step, _peak_of_jax, _kind_of_jax())

    # --- decoding ---------------------------------------------------------------------------------

    def decode(self) -> None:
        """Greedy tokens behind prompts of one sequence and of eight; the caller reads all of
        them."""
        generate = {
            "torch": self.decode_torch,
            "JAX by hand": self.decode_jax,
            "xla": self.decode_xla,
        }[self.name]()
        for count in (1, 8):
            draw = torch.Generator().manual_seed(count)
            shape = (count, self.sizes.prompt)
            prompt = torch.randint(1, self.sizes.llama["vocab_size"], shape, generator=draw)
            started = time.perf_counter()
            tokens = generate(prompt)
            first, seconds = time.perf_counter() - started, []
            generate(prompt)
            for _ in range(TIMED):
                started = time.perf_counter()
                tokens = generate(prompt)
                seconds.append(time.perf_counter() - started)
            assert tokens.shape == (count, self.sizes.prompt + self.sizes.tokens), tokens.shape
            speed = count * self.sizes.tokens / statistics.median(seconds)
            self.keep(
                **{
                    f"first {count}": first,
                    f"speed {count}": speed,
                    f"tokens {count}": tokens.tolist(),
                }
            )

    @property
    def dtype(self) -> torch.dtype:
        """Of decoding: bfloat16, and float32 in a dry run, whose sides then choose the same
        tokens."""
        return torch.float32 if self.is_dry else torch.bfloat16

    def by_generate(self, device: str) -> Callable[[Tensor], Tensor]:
        """transformers' `generate` with a static cache; on CUDA it compiles the model by itself."""
        network: Any = self.loaded("cpu").to(self.dtype).to(device).eval()
        network.config.use_cache = network.generation_config.use_cache = True

        def run(prompt: Tensor) -> Tensor:
            prompt = prompt.to(device)
            result: Tensor = network.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                cache_implementation="static",
                max_new_tokens=self.sizes.tokens,
                min_new_tokens=self.sizes.tokens,
                pad_token_id=0,
            )
            return result.cpu()

        return run

    def decode_torch(self) -> Callable[[Tensor], Tensor]:
        self.keep(device="CPU" if self.is_dry else torch.cuda.get_device_name())
        return self.by_generate("cpu" if self.is_dry else "cuda")

    def decode_xla(self) -> Callable[[Tensor], Tensor]:
        import spmd

        if self.is_dry:
            spmd.simulate(1)
        run = self.by_generate("xla")
        self.keep(device=_kind_of_jax())
        return run

    def decode_jax(self) -> Callable[[Tensor], Tensor]:
        import jax.numpy as jnp

        from recipes.benchmarks.jax_decode import Decoder, Shapes

        config = self.sizes.llama_config
        shapes = Shapes(
            config.num_hidden_layers,
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.rope_parameters["rope_theta"],
            config.rms_norm_eps,
        )
        loaded = load_file(self.weights)
        self.wait()
        dtype = jnp.float32 if self.is_dry else jnp.bfloat16
        weights = {name: jnp.asarray(x.numpy(), dtype) for name, x in loaded.items()}
        decoder = Decoder(shapes, weights, self.sizes.prompt + self.sizes.tokens)
        self.keep(device=_kind_of_jax())
        none = -1  # no token ends a sequence
        return lambda prompt: torch.from_numpy(
            np.array(decoder.generate(prompt.numpy(), self.sizes.tokens, none))
        )


def _peak_of_jax() -> int | None:
    import jax

    stats = jax.local_devices()[0].memory_stats()
    return stats["peak_bytes_in_use"] if stats else None


def _kind_of_jax() -> str:
    import jax

    return str(jax.local_devices()[0].device_kind)


def write_weights(options: argparse.Namespace) -> None:
    """Writes the weights of both models by a seed, in float32."""
    for part in ("gpt", "llama"):
        options.part = part
        side = Side(options)
        torch.manual_seed(0)
        state = side.network().state_dict()
        written = side.weights.with_suffix(".part")
        save_file({name: value.contiguous() for name, value in state.items()}, written)
        written.rename(side.weights)  # whole where it exists


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=[*SIDES, "weights"])
    parser.add_argument("side", nargs="?", default="")
    parser.add_argument("--folder", required=True, help="of weights and figures")
    parser.add_argument("--dry-run", action="store_true", help="small, on the CPU")
    parser.add_argument(
        "--wait",
        action="store_true",
        help="for FOLDER/turn-PART-SIDE, once the weights are in memory",
    )
    parser.add_argument(
        "--target", help="plan the step for this device; only for sides of this library"
    )
    options = parser.parse_args()
    if options.part == "weights":
        write_weights(options)
        return
    side = Side(options)
    if options.part == "decode":
        side.decode()
    elif options.side == "torch.compile":
        side.by_torch()
    elif options.side == "JAX by hand":
        side.by_jax()
    else:
        side.by_us(is_compiled=options.side != "lazy", is_wrapped=options.side.startswith("FSDP"))


if __name__ == "__main__":
    main()
