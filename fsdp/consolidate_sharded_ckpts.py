"""`python -m fsdp.consolidate_sharded_ckpts`: joins the checkpoints of the ranks of PyTorch/XLA's
FSDP into one."""

import argparse
from collections.abc import Sequence

from .convert import consolidate_sharded_model_checkpoints


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line, joins the files and prints the path of the checkpoint."""
    parser = argparse.ArgumentParser(
        prog="python -m fsdp.consolidate_sharded_ckpts", description=__doc__
    )
    parser.add_argument(
        "--ckpt_prefix", required=True, help="the beginning of the files' names, with their folder"
    )
    parser.add_argument(
        "--ckpt_suffix",
        default="_rank-*-of-*.pth",
        help="their end, a pattern (default: %(default)s)",
    )
    parser.add_argument(
        "--save_path",
        default="",
        help="the file to write (default: the prefix and _consolidated.pth)",
    )
    state, path = consolidate_sharded_model_checkpoints(**vars(parser.parse_args(arguments)))
    print(f"{len(state)} tensors saved to {path}")


if __name__ == "__main__":
    main()
