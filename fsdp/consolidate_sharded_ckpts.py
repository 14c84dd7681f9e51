"""`python -m fsdp.consolidate_sharded_ckpts`: one checkpoint of those that the ranks of PyTorch/XLA's FSDP saved."""

import argparse
from collections.abc import Sequence

from .convert import consolidate_sharded_model_checkpoints


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line, and says where the checkpoint is."""
    parser = argparse.ArgumentParser(prog="python -m fsdp.consolidate_sharded_ckpts", description=__doc__)
    parser.add_argument("--ckpt_prefix", required=True, help="what the files' names begin with, their folder included")
    parser.add_argument("--ckpt_suffix", default="_rank-*-of-*.pth", help="what they end with (default: %(default)s)")
    parser.add_argument("--save_path", default="", help="where it goes (default: the prefix and _consolidated.pth)")
    given = parser.parse_args(arguments)
    state, path = consolidate_sharded_model_checkpoints(given.ckpt_prefix, given.ckpt_suffix, given.save_path)
    print(f"{len(state)} tensors saved to {path}")


if __name__ == "__main__":
    main()
