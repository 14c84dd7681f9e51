"""Uses of a model other than training: save and load, generate, adapt with LoRA, sample images,
name dims."""

import copy
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import einops
import pytest
import torch
from diffusers import DDIMScheduler, DPMSolverMultistepScheduler, StableDiffusionPipeline
from models.zoo import BATCH, SEQUENCE, VOCABULARY, ZOO, unet
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from support import Batch, check
from torch import Tensor, nn
from transformers import GPT2LMHeadModel, LlamaForCausalLM, T5Config, T5ForConditionalGeneration
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

import fsdp
import spmd


def split(tensor: Tensor, mesh: spmd.Mesh) -> Tensor:
    return spmd.mark_sharding(tensor.to("xla"), mesh, ("fsdp", *[None] * (tensor.dim() - 1)))


class TestSaveAndLoad:
    """save_pretrained on the device, from_pretrained on plain CPU: the same weights to the bit, the
    same numbers."""

    def test_sharded_weights(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        model = ZOO["llama"].build().to("xla")
        for parameter in model.parameters():
            spmd.mark_sharding(parameter, mesh8, ("fsdp", *[None] * (parameter.dim() - 1)))
        tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE))
        model(input_ids=split(tokens, mesh8)).logits.sum().backward()
        torch.optim.SGD(model.parameters(), lr=1e-3).step()
        model.save_pretrained(tmp_path)
        loaded = LlamaForCausalLM.from_pretrained(tmp_path)
        assert {parameter.device.type for parameter in loaded.parameters()} == {"cpu"}
        for name, parameter in model.state_dict().items():
            assert torch.equal(parameter.cpu(), loaded.state_dict()[name]), name
        with torch.no_grad():
            check(model(input_ids=split(tokens, mesh8)).logits, loaded(input_ids=tokens).logits)

    def test_tied_weights_are_saved_once(self, tmp_path: Path) -> None:
        model = ZOO["gpt2"].build().to("xla")
        model.save_pretrained(tmp_path)
        assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
        loaded = GPT2LMHeadModel.from_pretrained(tmp_path)
        assert loaded.lm_head.weight is loaded.transformer.wte.weight
        assert torch.equal(model.lm_head.weight.cpu(), loaded.lm_head.weight)

    def test_a_view_shares_its_storage(self) -> None:
        one, other = torch.ones(4, 3, device="xla"), torch.ones(4, 3, device="xla")
        assert (
            one.untyped_storage().data_ptr()
            == one.T[1:].untyped_storage().data_ptr()
            == one.data_ptr()
        )
        assert one[2].data_ptr() == one.data_ptr() + 2 * 3 * 4
        assert one.data_ptr() != other.data_ptr()


class TestGenerate:
    """Unmodified, tokens are CPU's, twenty are few programs, forty as many, the next prompt of that
    length runs the same."""

    HOW: ClassVar[dict[str, Any]] = {
        "do_sample": False,
        "pad_token_id": 0,
        "max_new_tokens": 20,
        "min_new_tokens": 20,
    }
    CACHES: ClassVar[dict[str, dict[str, Any]]] = {
        "dynamic": {},
        "static": {"cache_implementation": "static"},
    }

    def pair(self, name: str, mesh: spmd.Mesh | None = None) -> tuple[Any, Any]:
        """A model on the CPU and one on the device, split where there is a mesh."""
        model = ZOO[name].build().eval()
        on_xla = copy.deepcopy(model).to("xla")
        for parameter in on_xla.parameters() if mesh is not None else ():
            spmd.mark_sharding(parameter, mesh, ("fsdp", *[None] * (parameter.dim() - 1)))
        return model, on_xla

    def programs(self, model: Any, on_xla: Any, padding: int = 0, **how: Any) -> int:
        """Compares both models' tokens for one prompt; returns the number of programs."""
        prompt = torch.randint(3, VOCABULARY, (2, 6))
        mask = torch.ones_like(prompt)
        mask[0, :padding] = 0
        before = spmd.metrics.num_compiles()
        made = on_xla.generate(
            prompt.to("xla"), attention_mask=mask.to("xla"), **self.HOW | how
        ).cpu()
        assert torch.equal(made, model.generate(prompt, attention_mask=mask, **self.HOW | how))
        return spmd.metrics.num_compiles() - before

    @pytest.mark.parametrize(
        ("name", "cache", "padding"),
        [
            ("llama", "dynamic", 0),
            ("llama", "dynamic", 2),
            ("llama", "static", 2),
            ("gpt2", "dynamic", 2),
            ("gpt2", "static", 0),
        ],
    )
    def test_greedy(self, name: str, cache: str, padding: int) -> None:
        model, on_xla = self.pair(name)
        how = self.CACHES[cache] | {"padding": padding}
        counts = [self.programs(model, on_xla, **how) for _ in range(3)]
        assert counts[0] <= 13 and counts[2] == 0, (counts, spmd.metrics.report())
        if cache == "dynamic":  # a static one of another size is another program
            longer = {"max_new_tokens": 40, "min_new_tokens": 40}
            assert self.programs(model, on_xla, **how | longer) == 0, spmd.metrics.report()

    @pytest.mark.parametrize(
        ("name", "cache"), [("llama", "dynamic"), ("gpt2", "dynamic"), ("llama", "static")]
    )
    def test_sharded(self, name: str, cache: str, mesh8: spmd.Mesh) -> None:
        model, on_xla = self.pair(name, mesh8)
        counts = [self.programs(model, on_xla, **self.CACHES[cache]) for _ in range(3)]
        assert counts[0] <= 16 and counts[2] == 0, (counts, spmd.metrics.report())

    def test_beams(self) -> None:
        """Beams reorder the cache at each token: it stays padded through an index, too."""
        model, on_xla = self.pair("llama")
        counts = [self.programs(model, on_xla, num_beams=3) for _ in range(3)]
        assert counts[0] <= 16 and counts[2] == 0, (counts, spmd.metrics.report())

    def test_sampling(self) -> None:
        """The device draws other numbers than the CPU: the best token of one is CPU's, a seed gives
        the same text."""
        model, on_xla = self.pair("llama")
        assert self.programs(model, on_xla, do_sample=True, top_k=1) <= 13, spmd.metrics.report()
        prompt, texts = torch.randint(3, VOCABULARY, (2, 6), device="xla"), []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            before = spmd.metrics.num_compiles()
            how = self.HOW | {"do_sample": True, "temperature": 2.0}
            texts.append(
                on_xla.generate(prompt, attention_mask=torch.ones_like(prompt), **how).cpu()
            )
        assert spmd.metrics.num_compiles() == before, spmd.metrics.report()
        assert torch.equal(texts[0], texts[1]) and not torch.equal(texts[0], texts[2])


class TestCache:
    """A value that is dropped is no result of the next program: no reference cycle keeps it for
    Python's collector."""

    @pytest.mark.parametrize("wrapped", [False, True])
    def test_a_dropped_output_with_its_cache(self, wrapped: bool, mesh8: spmd.Mesh) -> None:
        model = ZOO["llama"].build().to("xla")
        if wrapped:
            model = fsdp.FullyShardedDataParallel(
                model, mesh8, auto_wrap_policy={LlamaDecoderLayer}
            )
        tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE), device="xla")
        spmd.sync()
        gc.collect()
        gc.disable()
        try:
            output = model(input_ids=tokens, labels=tokens, use_cache=True)
            kept = [
                weakref.ref(part)
                for layer in output.past_key_values.layers
                for part in (layer.keys, layer.values)
            ]
            assert kept and all(part() is not None for part in kept)
            del output
            assert not [part() for part in kept if part() is not None]
        finally:
            gc.enable()


class TestDeep:
    """A deep encoder and decoder, unmodified: their equal layers become loops of the program by
    default."""

    def test_t5(self) -> None:
        """The first layers hold the relative positions: the values that they keep for backward are
        a peeled row."""
        settings: dict[str, Any] = {
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 32,
            "num_heads": 2,
            "dropout_rate": 0.0,
        }
        depth = {"num_layers": 9, "num_decoder_layers": 9}
        model = T5ForConditionalGeneration(
            T5Config(vocab_size=64, decoder_start_token_id=0, **settings, **depth)
        )
        tokens = torch.randint(64, (4, 16))

        def loss_of(module: nn.Module, ids: Tensor) -> Tensor:
            loss: Tensor = module(input_ids=ids, labels=ids).loss
            loss.backward()
            return loss.detach()

        on_device = copy.deepcopy(model).to("xla")
        spmd.sync()
        spmd.metrics.clear()
        loss = loss_of(on_device, tokens.to("xla"))
        spmd.sync()
        assert [
            iterations for iterations, _ in spmd.metrics.compiles()[-1].loops if iterations < 16
        ] == [8, 8, 8, 8]
        check(loss, loss_of(model, tokens))
        for one, other in zip(on_device.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-4, atol=1e-5)


# in peft
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
class TestLoRA:
    """peft's adapters train on a sharded batch as on CPU, and only they do."""

    def step(self, model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        optimizer = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad], lr=1e-2, eps=1e-4
        )
        for _ in range(2):  # the first step leaves one of the two factors at zero
            model(**inputs).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }

    def test_on_a_sharded_batch(self, mesh8: spmd.Mesh) -> None:
        config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
        case = ZOO["llama"]
        model, inputs = case.build(), case.inputs()
        adapted = get_peft_model(copy.deepcopy(model), config)
        on_xla = copy.deepcopy(adapted).to("xla")
        expected = self.step(adapted, inputs)
        actual = self.step(on_xla, {name: split(tensor, mesh8) for name, tensor in inputs.items()})
        assert expected and all("lora_" in name for name in expected)
        for name, weight in expected.items():
            assert (actual[name].detach().cpu() - weight.detach()).abs().max() < 0.01 * 1e-2, name
        merged = on_xla.merge_and_unload()
        with torch.no_grad():
            check(
                merged(inputs["input_ids"].to("xla")).logits,
                adapted.merge_and_unload()(inputs["input_ids"]).logits,
            )

    def test_over_a_frozen_sharded_model(self, mesh8: spmd.Mesh, tmp_path: Path) -> None:
        """With FSDP only adapters have gradients and optimizer state; plain peft reads the saved
        files."""
        config = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
        case = ZOO["llama"]
        base, inputs = case.build(), case.inputs()
        adapted = get_peft_model(copy.deepcopy(base), config)
        sharded = fsdp.FullyShardedDataParallel(
            copy.deepcopy(adapted), mesh8, auto_wrap_policy={LlamaDecoderLayer}
        )
        expected = self.step(adapted, inputs)

        weights = dict(sharded.named_parameters())
        optimizer = torch.optim.AdamW(sharded.parameters(), lr=1e-2, eps=1e-4)
        for _ in range(2):
            sharded(**{name: tensor.to("xla") for name, tensor in inputs.items()}).loss.backward()
            assert {name for name, weight in weights.items() if weight.grad is not None} == set(
                expected
            )
            optimizer.step()
            optimizer.zero_grad()
        assert set(optimizer.state) == {weights[name] for name in expected}
        cut = [
            weight for weight in weights.values() if not spmd.get_sharding(weight).is_replicated()
        ]
        assert len(cut) == len(weights)
        for name, weight in expected.items():
            assert (weights[name].detach().cpu() - weight.detach()).abs().max() < 0.01 * 1e-2, name

        sharded.module.save_pretrained(tmp_path)
        saved = load_file(tmp_path / "adapter_model.safetensors")
        assert len(saved) == len(expected) and all("lora_" in name for name in saved)
        plain = PeftModel.from_pretrained(copy.deepcopy(base), tmp_path)
        tokens = inputs["input_ids"]
        with torch.no_grad():
            logits = sharded(input_ids=tokens.to("xla")).logits
            check(logits, plain(input_ids=tokens).logits)
            merged = sharded.module.merge_and_unload()
            check(merged(tokens.to("xla")).logits, plain.merge_and_unload()(tokens).logits)


class TestEinops:
    """Names of dims instead of numbers, on a sharded tensor as on any other."""

    CASES: ClassVar[dict[str, Callable[..., Any]]] = {
        "split heads": lambda x, y: einops.rearrange(x, "b s (h d) -> b h s d", h=4),
        "join the sharded dim": lambda x, y: einops.rearrange(x, "b s d -> (b s) d"),
        "split the sharded dim": lambda x, y: einops.rearrange(x, "(i j) s d -> j s (i d)", i=2),
        "mean": lambda x, y: einops.reduce(x, "b s d -> b d", "mean"),
        "max over the sharded dim": lambda x, y: einops.reduce(x, "b s d -> s d", "max"),
        "patches": lambda x, y: einops.reduce(x, "b (s p) d -> b s d", "sum", p=2),
        "repeat": lambda x, y: einops.repeat(x, "b s d -> b s r d", r=3),
        "einsum": lambda x, y: einops.einsum(x, y, "b s d, b t d -> b s t"),
        "einsum over the sharded dim": lambda x, y: einops.einsum(x, y, "b s d, b t d -> s t"),
        "pack": lambda x, y: einops.pack([x, y], "b * d")[0],
    }

    def test_values_and_gradients(self, mesh8: spmd.Mesh) -> None:
        batch = Batch(mesh=mesh8, axis="fsdp")
        x, y = torch.randn(8, 6, 8), torch.randn(8, 5, 8)
        for name, function in self.CASES.items():
            batch.case(name, function, x, y)
        batch.check()


class TestDiffusionPipeline:
    """A text-to-image pipeline, unmodified, progress bar on, no sync written by the user: CPU's
    latents."""

    def sample(self, model: nn.Module, scheduler: Any, device: str, steps: int) -> Tensor:
        pipeline = StableDiffusionPipeline(
            vae=None,
            text_encoder=None,
            tokenizer=None,
            unet=model,
            scheduler=scheduler,
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        ).to(device)
        generator = torch.Generator().manual_seed(0)

        def make(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device)

        return pipeline(
            prompt_embeds=make(2, 5, 16),
            negative_prompt_embeds=make(2, 5, 16),
            latents=make(2, 4, 8, 8),
            num_inference_steps=steps,
            output_type="latent",
        ).images

    SCHEDULERS: ClassVar[dict[str, Callable[[], Any]]] = {
        "DDIM": lambda: DDIMScheduler(steps_offset=1, clip_sample=False),
        "DPMSolverMultistep": lambda: DPMSolverMultistepScheduler(steps_offset=1),
    }

    # in diffusers
    @pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")
    @pytest.mark.parametrize("name", SCHEDULERS)
    def test_latents(self, name: str) -> None:
        torch.manual_seed(0)
        model = unet().eval()
        expected = self.sample(model, self.SCHEDULERS[name](), "cpu", 50)
        before = spmd.metrics.num_compiles()
        actual = self.sample(model.to("xla"), self.SCHEDULERS[name](), "xla", 50).cpu()
        assert (actual - expected).norm() / expected.norm() < 1e-4
        assert spmd.metrics.num_compiles() - before <= 6, spmd.metrics.report()
