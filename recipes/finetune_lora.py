"""Fine-tune by LoRA over a frozen base that is sharded and comes from safetensors, on eight
simulated devices.

    python recipes/finetune_lora.py                       # a base of its own, then adapters; fsdp=8
    python recipes/finetune_lora.py --base out/model      # over the model that wrap_hugging_face.py
                                                          # has left
    python recipes/finetune_lora.py --base int4           # a base of its own, in four bits
    python recipes/finetune_lora.py --mesh data=2,fsdp=4  # two replicas of a four-way FSDP
    python recipes/finetune_lora.py --compile             # the step recorded once and replayed
    python recipes/finetune_lora.py --device cpu          # the same file in plain PyTorch, for
                                                          # comparison
    python recipes/finetune_lora.py --target v5e:2x4      # plan the step for a TPU slice; nothing
                                                          # is trained

A small Llama learns Python's documentation and is saved as Hugging Face saves it, in several
safetensors files with an index (OUT/base; --base takes such a folder instead). `adapt` builds it
again on the devices without values, with adapters of `peft` in its linear layers, wraps it, and
reads the files shard by shard. With `--base int4` the linear layers of the base are packed as they
are read (`recipes/packed.py`): four bits an element are stored, and gathered. Then the adapters
alone learn source code of Python's library: the table shows the bytes per device of parameters,
gradients and optimizer state. OUT/adapters has the adapters as peft reads them, OUT/merged the
model with the adapters added to its weights; both are compared on the CPU, and OUT/loss.png is the
curve.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from rich import box
from rich.console import Console
from rich.table import Table
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import fsdp
import spmd
from recipes import packed, text, training
from recipes.placement import show_bytes
from recipes.training import History
from recipes.wrap_hugging_face import LAYERS, configure, heldout_loss, plan, to_devices, train, wrap

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FILE = "1MB"  # the most that one of the base's files holds


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "--mesh",
        type=partial(training.parse_mesh, others=("data",)),
        default={"fsdp": 8},
        metavar="AXIS=SIZE,...",
        help="mesh axes in order: fsdp and data (default fsdp=8)",
    )
    training.add_device_flag(where)
    training.add_place_flags(where)
    model = training.add_model_flags(parser)
    model.add_argument(
        "--base",
        type=Path,
        metavar="DIR",
        help="a Llama over bytes, as save_pretrained writes it; int4: its own, in four bits",
    )
    model.add_argument(
        "--rank",
        type=int,
        default=8,
        metavar="N",
        help="rank of the adapters (default %(default)s)",
    )
    more = training.add_training_flags(parser, steps=100, eval_every=50)
    more.add_argument(
        "--base-steps", type=int, default=150, metavar="N", help="of the base (default %(default)s)"
    )
    args = parser.parse_args(arguments)
    args.model = "llama"
    args.packed = args.base == Path("int4")
    args.base = None if args.packed else args.base
    if wrong := training.fault(args):
        parser.error(wrong)
    if args.base and not (args.base / "config.json").is_file():
        parser.error(
            f"--base {args.base} has no config.json: expected a folder of save_pretrained, such "
            "as out/model"
        )
    if args.base_steps < 1:
        parser.error(f"--base-steps must be at least 1, got {args.base_steps}")
    return args


def train_base(corpus: text.Text, args: argparse.Namespace, console: Console) -> Path:
    """Trains a model on the documentation; returns its folder."""
    settings = argparse.Namespace(
        **{**vars(args), "steps": args.base_steps, "eval_every": args.base_steps}
    )
    with torch.device(args.device):
        plain = args.device == "cpu"
        model = (
            AutoModelForCausalLM.from_config(configure(args))
            if plain
            else wrap(configure(args), args.mesh)
        )
    train(model, corpus, settings, console, bigram=text.bigram_loss(corpus), put=mover(args))
    model.save_pretrained(args.out / "base", max_shard_size=FILE)
    return Path(args.out / "base")


def mover(args: argparse.Namespace) -> Callable[[Tensor], Tensor]:
    """Returns the function that moves a batch to where the model is."""
    return to_devices if args.device == "xla" else Tensor.cpu


def lora(args: argparse.Namespace) -> LoraConfig:
    return LoraConfig(
        r=args.rank, lora_alpha=2 * args.rank, target_modules=TARGETS, lora_dropout=0.0
    )


def wrap_adapted(config: PretrainedConfig, args: argparse.Namespace) -> nn.Module:
    """Returns the model of a configuration with adapters, sharded, a unit of FSDP a layer."""
    mesh = spmd.Mesh(range(prod(args.mesh.values())), tuple(args.mesh.values()), tuple(args.mesh))
    with torch.device("xla"):
        model = AutoModelForCausalLM.from_config(config)
        model = packed.shard(maybe_packed(model, args), mesh)
        model = get_peft_model(model, lora(args))
    policy = fsdp.policy_from_config(
        {"fsdp_transformer_layer_cls_to_wrap": LAYERS[config.model_type]}
    )
    data = "data" if "data" in args.mesh else None
    return fsdp.FullyShardedDataParallel(model, mesh, auto_wrap_policy=policy, extra_data_axis=data)


def maybe_packed(model: nn.Module, args: argparse.Namespace) -> nn.Module:
    """Returns the model, with `--base int4` its linear layers packed."""
    return packed.pack_layers(model, TARGETS) if args.packed else model


def read_base(base: Path, args: argparse.Namespace) -> nn.Module:
    """Returns the base of a folder on the CPU."""
    return maybe_packed(AutoModelForCausalLM.from_pretrained(base), args)


def adapt(base: Path, args: argparse.Namespace) -> nn.Module:
    """Returns the base of a folder with new adapters, the base frozen; on xla sharded, and loaded
    shard by shard."""
    if args.device == "cpu":
        return get_peft_model(read_base(base, args), lora(args))
    model = wrap_adapted(AutoConfig.from_pretrained(base), args)
    names = {base_name(name): name for name in model.state_dict()}
    names |= {  # a packed layer loads the weight of a file itself
        f"{short.removesuffix('packed')}weight": f"{name.removesuffix('packed')}weight"
        for short, name in names.items()
        if short.endswith(".packed")
    }
    left = fsdp.load_checkpoint(
        model, base, rename=lambda name: names.get(name, name), strict=False
    )
    if left.unexpected_keys or any("lora_" not in name for name in left.missing_keys):
        raise SystemExit(f"--base {base} is another model: {left}")
    return model


def base_name(name: str) -> str:
    """Returns the name that a parameter of a model with adapters has in the model without."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def memory(model: nn.Module, optimizer: torch.optim.Optimizer) -> Table:
    """Returns the table of bytes on the fullest device, of the base and of the adapters."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0), title_justify="left")
    table.title = "Bytes per device"
    for heading in ("", "numbers", "parameters", "gradients", "optimizer state"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for title, trained in (("frozen base", False), ("adapters", True)):
        parameters = [
            parameter for parameter in model.parameters() if parameter.requires_grad == trained
        ]
        parameters += [] if trained else packed.buffers_of(model)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        state = [
            value
            for each in parameters
            for value in optimizer.state.get(each, {}).values()
            if value.dim()
        ]
        count = f"{sum(parameter.numel() for parameter in parameters):,}"
        table.add_row(
            title, count, *(show_bytes(per_device(each)) for each in (parameters, gradients, state))
        )
    return table


def per_device(tensors: list[Tensor]) -> int:
    """Returns the bytes of tensors on the fullest device, counted from their real shards."""
    found: dict[object, int] = {}
    for tensor in tensors:
        here = spmd.local_shards(tensor) if tensor.device.type == "xla" else []
        for device, data in [(shard.device, shard.data) for shard in here] or [("cpu", tensor)]:
            found[device] = found.get(device, 0) + data.nbytes
    return max(found.values(), default=0)


def look(model: nn.Module, args: argparse.Namespace, console: Console) -> None:
    """Prints the memory of a step; its gradients are dropped, and its learning rate is zero."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    tokens = mover(args)(torch.zeros(args.batch, args.sequence, dtype=torch.long))
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    console.print(memory(model, optimizer))
    optimizer.zero_grad()


def unchanged(model: nn.Module, base: Path) -> bool:
    """Returns True if the frozen weights are those of the files, bit for bit."""
    weights = {
        base_name(name): weight
        for name, weight in model.state_dict().items()
        if "lora_" not in name
    }
    for path in base.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                tensor, bits = file.get_tensor(name), f"{name.removesuffix('weight')}packed"
                tensor = packed.pack(tensor)[0] if bits in weights else tensor
                if not torch.equal(weights[bits if bits in weights else name].cpu(), tensor):
                    return False
    return True


def files_size(folder: Path) -> str:
    return show_bytes(sum(path.stat().st_size for path in folder.glob("*.safetensors")))


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    started, console = time.perf_counter(), training.make_console()
    logging.disable_progress_bar()  # the bar of loading, which takes no time
    # in peft
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    if args.device == "xla":
        # Before anything else touches the device: the number of devices is fixed when jax's backend
        # starts.
        spmd.simulate(prod(args.mesh.values()))
    if args.partitioner:
        spmd.config.partitioner = args.partitioner
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)

    if args.target:
        config = AutoConfig.from_pretrained(args.base) if args.base else configure(args)
        planned = plan(wrap_adapted(config, args), args)
        planned.save(args.out / "plan.html")
        console.print(planned)
        return
    documentation, code = text.load(), text.load_code()
    base = args.base or train_base(documentation, args, console)
    console.print(
        f"the base: {base}, {len([*base.glob('*.safetensors')])} files, {files_size(base)}",
        highlight=False,
    )
    model = adapt(base, args)
    look(model, args, console)

    put, bigram = mover(args), text.bigram_loss(code)
    before = heldout_loss(model, code, args, put=put)
    history = History(train=[], heldout=[(0, before)])
    found = train(model, code, args, console, bigram=bigram, put=put)
    history.train, history.heldout = found.train, history.heldout + found.heldout

    adapted = model.module if args.device == "xla" else model
    adapted.save_pretrained(args.out / "adapters")
    frozen = "are" if unchanged(model, base) else "are NOT"
    packed.widen_layers(adapted).merge_and_unload().save_pretrained(args.out / "merged")
    plain = PeftModel.from_pretrained(read_base(base, args), args.out / "adapters")
    merged = AutoModelForCausalLM.from_pretrained(args.out / "merged")
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0), title_justify="left")
    table.title = "Held-out loss, nats per byte"
    for heading in ("", "source code", "documentation"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    untouched = read_base(base, args)
    for title, each in (
        ("the base, on the CPU", untouched),
        ("OUT/adapters over it, read by peft, on the CPU", plain),
        ("OUT/merged, on the CPU", merged),
    ):
        table.add_row(
            title, *(f"{heldout_loss(each, corpus, args):.4f}" for corpus in (code, documentation))
        )
    console.print(table)

    where = (
        "plain PyTorch"
        if args.device == "cpu"
        else ", ".join(f"{name}={size}" for name, size in args.mesh.items())
    )
    title = f"LoRA of rank {args.rank} on Python's source code, over a frozen Llama ({where})"
    training.draw(history, bigram=bigram, title=title, path=args.out / "loss.png")
    if args.sample:
        training.show_sample(
            merged, lambda tokens: merged(tokens).logits, code.heldout, args, console, rows=1
        )
    console.print(
        f"\nheld-out loss of source code [bold]{before:.4f}[/bold] nats per byte before, "
        f"[bold]{history.heldout[-1][1]:.4f}[/bold] after; bigram table {bigram:.4f}\n"
        f"the base's weights {frozen} those of its files; {files_size(args.out / 'adapters')} of "
        "adapters\n"
        f"{spmd.metrics.num_compiles()} compiles, {spmd.metrics.num_loaded()} from disk, "
        f"{time.perf_counter() - started:.0f} s\n"
        f"{args.out / 'loss.png'}, {args.out / 'adapters'}, {args.out / 'merged'}",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()
