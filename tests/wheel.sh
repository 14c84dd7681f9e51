#!/usr/bin/env bash
# A wheel where nothing but torch and jax is installed, outside of this tree: doctor, the README's first example, a plan of
# a training step for eight devices, and the tour.
#
#     PYTHON=.venv-release/bin/python tests/wheel.sh
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(realpath --no-symlinks "${PYTHON:?expected PYTHON=, the interpreter of the environment}")
tree=$PWD
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
sed -n '/^```python$/,/^```$/{/^```/!p; /^```$/q}' README.md >"$folder/example.py"
cp tests/test_tour.py "$folder"
cat >"$folder/conftest.py" <<'END'
import pytest
import spmd

spmd.simulate(8)
MESHES = {"mesh8": ((8,), ("fsdp",)), "mesh2x4": ((2, 4), ("data", "fsdp"))}
mesh8 = pytest.fixture(lambda: spmd.Mesh(range(8), *MESHES["mesh8"]), name="mesh8")
mesh2x4 = pytest.fixture(lambda: spmd.Mesh(range(8), *MESHES["mesh2x4"]), name="mesh2x4")
mesh1 = pytest.fixture(lambda: spmd.Mesh(range(1), (1,), ("fsdp",)), name="mesh1")
END
cat >"$folder/train.py" <<'END'
import fsdp
import spmd
import torch

spmd.simulate(8)
model = fsdp.FullyShardedDataParallel(torch.nn.Linear(256, 256), spmd.Mesh(range(8), (8,), ("fsdp",)))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.ones(8, 256, device="xla")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    spmd.sync()
END
cd "$folder"
"$python" -c "import spmd; assert not spmd.__file__.startswith('$tree/spmd'), spmd.__file__"
"$python" -m spmd doctor
"$python" -W error example.py
"$python" -m spmd plan train.py
"$python" -m pip install --quiet -c "$tree/constraints.txt" pytest
"$python" -m pytest -q -p no:cacheprovider test_tour.py
