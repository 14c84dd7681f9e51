"""What people do with a model beside training: save and load, generate, adapt with LoRA, sample images, name dims."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import einops
import pytest
import torch
from diffusers import DDIMScheduler, DPMSolverMultistepScheduler, StableDiffusionPipeline
from models.zoo import BATCH, SEQUENCE, VOCABULARY, ZOO, unet
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from support import Batch, check
from torch import Tensor, nn
from transformers import GPT2LMHeadModel, LlamaForCausalLM

import spmd


def split(tensor: Tensor, mesh: spmd.Mesh) -> Tensor:
    return spmd.mark_sharding(tensor.to("xla"), mesh, ("fsdp", *[None] * (tensor.dim() - 1)))


class TestSaveAndLoad:
    """save_pretrained on the device, from_pretrained on plain CPU: the same weights to the bit, the same numbers."""

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
        assert one.untyped_storage().data_ptr() == one.T[1:].untyped_storage().data_ptr() == one.data_ptr()
        assert one[2].data_ptr() == one.data_ptr() + 2 * 3 * 4
        assert one.data_ptr() != other.data_ptr()


class TestGenerate:
    """With a static cache, tokens are CPU's, twenty are few programs, the next prompt of that length runs the same."""

    HOW: ClassVar[dict[str, Any]] = {
        "max_new_tokens": 20,
        "do_sample": False,
        "cache_implementation": "static",
        "pad_token_id": 0,
    }

    @pytest.mark.parametrize("padding", [0, 2])
    def test_static_cache(self, padding: int) -> None:
        model = ZOO["llama"].build().eval()
        on_xla = copy.deepcopy(model).to("xla")
        counts = []
        for _ in range(3):
            prompt = torch.randint(3, VOCABULARY, (2, 6))
            mask = torch.ones_like(prompt)
            mask[0, :padding] = 0
            before = spmd.metrics.num_compiles()
            made = on_xla.generate(prompt.to("xla"), attention_mask=mask.to("xla"), **self.HOW)
            assert torch.equal(made.cpu(), model.generate(prompt, attention_mask=mask, **self.HOW))
            counts.append(spmd.metrics.num_compiles() - before)
        assert counts[0] <= 13, spmd.metrics.report()
        assert counts[2] == 0, spmd.metrics.report()


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's own call
class TestLoRA:
    """peft's adapters train on a sharded batch as on CPU, and only they do."""

    def step(self, model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, eps=1e-4)
        for _ in range(2):  # the first step leaves one of the two factors at zero
            model(**inputs).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}

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
            check(merged(inputs["input_ids"].to("xla")).logits, adapted.merge_and_unload()(inputs["input_ids"]).logits)


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
    """A text-to-image pipeline, unmodified, progress bar on, no barrier written by the user: CPU's latents."""

    def sample(self, model: nn.Module, scheduler: Any, device: str, steps: int) -> Tensor:
        pipeline = StableDiffusionPipeline(
            vae=None, text_encoder=None, tokenizer=None, unet=model, scheduler=scheduler,
            safety_checker=None, feature_extractor=None, requires_safety_checker=False,
        ).to(device)  # fmt: skip
        generator = torch.Generator().manual_seed(0)

        def make(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device)

        return pipeline(
            prompt_embeds=make(2, 5, 16), negative_prompt_embeds=make(2, 5, 16), latents=make(2, 4, 8, 8),
            num_inference_steps=steps, output_type="latent",
        ).images  # fmt: skip

    SCHEDULERS: ClassVar[dict[str, Callable[[], Any]]] = {
        "DDIM": lambda: DDIMScheduler(steps_offset=1, clip_sample=False),
        "DPMSolverMultistep": lambda: DPMSolverMultistepScheduler(steps_offset=1),
    }

    @pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")  # diffusers' own
    @pytest.mark.parametrize("name", SCHEDULERS)
    def test_latents(self, name: str) -> None:
        torch.manual_seed(0)
        model = unet().eval()
        expected = self.sample(model, self.SCHEDULERS[name](), "cpu", 50)
        before = spmd.metrics.num_compiles()
        actual = self.sample(model.to("xla"), self.SCHEDULERS[name](), "xla", 50).cpu()
        assert (actual - expected).norm() / expected.norm() < 1e-4
        assert spmd.metrics.num_compiles() - before <= 6, spmd.metrics.report()
