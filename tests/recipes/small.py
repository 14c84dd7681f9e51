"""The recipes that `--target` plans, each with arguments that make it small."""

BLOCKS = ["--layers=2", "--width=32", "--heads=2", "--sequence=16"]
RECIPES = {
    "train_gpt": BLOCKS,
    "train_llama": [*BLOCKS, "--kv-heads=2"],
    "train_vit": ["--layers=1", "--width=32", "--heads=2"],
    "train_resnet": ["--batch=16", "--width=8"],
    "train_diffusion": ["--width=16", "--batch=16"],
    "train_mixtral": [*BLOCKS, "--experts=4"],
    "train_t5": ["--layers=1", "--width=32", "--heads=2", "--batch=16"],
    "wrap_hugging_face": BLOCKS,
    "finetune_lora": BLOCKS,
    "generate": [
        *BLOCKS,
        "--width=64",
        "--heads=8",
        "--draft-width=16",
        "--prompt=8",
        "--tokens=8",
    ],
    "sample_stable_diffusion": [],
    "offload": ["--layers=2", "--width=128"],
}
