"""Stable Diffusion over all devices by `torch_xla.launch`: a loader gives each its prompt and its
noise.

python stable_diffusion.py --save saved.pt
"""

import sys

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
from shapes import diffusion_pipeline, prompts

WRAPPED = xmp.MpModelWrapper(diffusion_pipeline())
saved = {}


def inference(index):
    device = xm.xla_device()
    pipe = WRAPPED.to(device)
    pipe.set_progress_bar_config(disable=True)
    for prompt, negative, noise in pl.MpDeviceLoader(prompts(4), device):
        latents = pipe(
            prompt_embeds=prompt,
            negative_prompt_embeds=negative,
            latents=noise,
            num_inference_steps=2,
            output_type="latent",
        ).images
        with torch.no_grad():
            images = pipe.vae.decode(latents / pipe.vae.config.scaling_factor).sample
        xm.mark_step()
        saved["shards"] = len({shard.indices[0].start for shard in images.local_shards})
        saved["images"] = images.cpu()
    print(f"{index}: {len(saved['images'])} images on {saved['shards']} devices")


def my_function(index):
    saved["index"] = index


if __name__ == "__main__":
    torch_xla.launch(inference, args=())
    torch_xla.launch(my_function)
    try:
        torch_xla.launch(my_function, args=(0,))
    except TypeError as error:
        saved["error"] = str(error)
    torch.save(saved, sys.argv[-1])
