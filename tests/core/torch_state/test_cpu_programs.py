"""Programs that never asked for the device: with the library imported they do what they do without
it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, run_script

# What such a program does with what the library patches; everything it prints is compared.
PROGRAM = """
    import copy, io, pickle, threading, warnings
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint
    from torch.utils.data import DataLoader, RandomSampler, TensorDataset, random_split


    class Batch:
        def __init__(self, rows):
            self.rows = rows

        def __repr__(self):
            return repr(self.rows)

        def pin_memory(self):
            raise AssertionError("there is no accelerator to pin for")


    def show(name, function):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            try:
                result = repr(function())
            except Exception as error:
                result = f"{type(error).__name__}: {str(error)[:60]}"
        said = [str(warning.message) for warning in seen]
        known = ("no accelerator is found", "use of fork()")
        print(name, result, [text for text in said if not any(words in text for words in known)])


    data = TensorDataset(torch.arange(12.0).view(6, 2), torch.arange(6))
    for settings in (
        {},
        {"pin_memory": True},
        {"pin_memory": True, "num_workers": 2},
        {"num_workers": 1, "pin_memory": False},
        {"pin_memory": True, "collate_fn": lambda rows: range(3)},
        {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
        {"pin_memory": True, "batch_size": None},
        {
            "pin_memory": True,
            "collate_fn": lambda rows: {"x": [row[0] for row in rows], "y": (1, "a"), "z": rows[0]},
        },
        {"pin_memory": True, "collate_fn": Batch},
    ):
        settings = {"batch_size": 3, **settings}
        show(f"loader {sorted(settings)}", lambda: list(DataLoader(data, **settings)))
    show(
        "loader with a deprecated name",
        lambda: len(DataLoader(data, pin_memory=True, pin_memory_device="cuda")),
    )
    show(
        "is_pinned",
        lambda: (torch.ones(2).is_pinned(), torch.ones(2).untyped_storage().is_pinned()),
    )


    def generators():
        made = torch.Generator(device="cpu").manual_seed(4)
        others = [pickle.loads(pickle.dumps(made)), copy.deepcopy(made), made.clone_state()]
        return [
            (torch.rand(2, generator=one), type(one), one.device, one.initial_seed())
            for one in (made, *others)
        ]


    show("generators", generators)
    show("generator of nothing", lambda: torch.Generator("nothing"))
    show("generator called wrongly", lambda: torch.Generator(3.5))
    show(
        "sampler", lambda: list(RandomSampler(range(9), generator=torch.Generator().manual_seed(5)))
    )
    show(
        "split",
        lambda: random_split(data, [2, 4], generator=torch.Generator().manual_seed(5))[0].indices,
    )


    def forked(**settings):
        torch.manual_seed(1)
        with torch.random.fork_rng(**settings):
            torch.manual_seed(2)
            inside = torch.rand(2)
        return inside, torch.rand(2), torch.initial_seed()


    show("fork_rng", forked)
    show("fork_rng of no device", lambda: forked(devices=[]))
    show("fork_rng of meta", lambda: forked(device_type="meta"))
    show("fork_rng not enabled", lambda: forked(enabled=False))


    def stored(**settings):
        model, file = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), io.BytesIO()
        model[1].weight = model[0].weight
        whole = torch.arange(6.0)
        saved = {
            "model": model.state_dict(),
            "views": [whole[2:], whole],
            "bytes": torch.ones(2).to(torch.float8_e5m2),
        }
        torch.save(saved, file, **settings)
        file.seek(0)
        loaded = torch.load(file)
        loaded["views"][0].zero_()
        same = loaded["model"]["0.weight"].data_ptr() == loaded["model"]["1.weight"].data_ptr()
        file.seek(0)
        on_meta = torch.load(file, map_location="meta")["views"][1].device
        pickled = [
            pickle.loads(pickle.dumps(value)) for value in (whole, (whole + 1j).conj(), model)
        ]
        return loaded["views"], same, on_meta, pickled, loaded["bytes"].float()


    show("torch.save", stored)
    show("torch.save of old", lambda: stored(_use_new_zipfile_serialization=False))
    show("load from elsewhere", lambda: torch.load(io.BytesIO(b"nothing")))


    def parallel():
        torch.manual_seed(0)
        model = nn.DataParallel(nn.Linear(3, 2))
        return (
            model(torch.ones(2, 3)),
            model.device_ids,
            next(model.parameters()).device,
            list(model.state_dict()),
        )


    show("DataParallel", parallel)


    def checkpointed(**settings):
        torch.manual_seed(0)
        x = torch.ones(8, requires_grad=True)
        y = checkpoint(lambda x: nn.functional.dropout(x * 2, 0.5), x, **settings)
        y.sum().backward()
        return y, x.grad


    show("checkpoint", lambda: checkpointed(use_reentrant=False))
    show("checkpoint, reentrant", lambda: checkpointed(use_reentrant=True))
    show(
        "streams",
        lambda: [
            torch.Stream(device="cpu"),
            torch.Event(device="cpu"),
            torch.Event(device="cpu").query(),
        ],
    )
    show(
        "methods",
        lambda: [
            hasattr(torch.ones(2), "is_cuda"),
            torch.ones(2).is_xla,
            torch.ones(2).cpu().device,
        ],
    )


    def thread():
        drawn = []
        one = threading.Thread(target=lambda: drawn.append(torch.manual_seed(3) and torch.rand(1)))
        one.start()
        one.join()
        return drawn


    show("thread", thread)


    def child():
        import os

        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, repr(torch.manual_seed(1) and torch.rand(1)).encode())
            os._exit(0)
        os.wait()
        return os.read(reader, 100)


    show("fork", child)
"""


class TestWithAndWithout:
    """Results and warnings of a CPU program are the same with `import spmd` and without."""

    def test_same_output(self) -> None:
        """But for two warnings. Loaders that are to pin memory find no accelerator; with the
        library, they do. Python 3.12 and newer warn at a fork of a process with threads: autograd
        starts one for an accelerator at its first backward, as for CUDA, and a loader one that
        pins.
        """
        without, imported = run_script(PROGRAM), run_script("    import spmd\n" + PROGRAM)
        assert imported.splitlines() == without.splitlines() and len(without.splitlines()) > 25


class TestHiddenName:
    """A folder named `spmd` beside the script is found first; who then wants the library is told
    so."""

    @pytest.mark.parametrize("hides", [True, False])
    def test_folder_beside_the_script(self, tmp_path: Path, hides: bool) -> None:
        (tmp_path / "spmd").mkdir()
        (tmp_path / "spmd" / ("__init__.py" if hides else "notes.txt")).write_text("")
        (tmp_path / "train.py").write_text(
            "import fsdp; print(fsdp.parameter_spec((8, 4), 'fsdp', 8))"
        )
        done = subprocess.run(
            [sys.executable, str(tmp_path / "train.py")],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
        )
        if hides:
            assert done.returncode == 1 and str(tmp_path / "spmd") in done.stderr
            assert "ImportError: fsdp needs the package spmd of torch-spmd" in done.stderr
        else:  # a folder without a module hides nothing
            assert done.stdout.strip() == "P('fsdp', None)", done.stderr
