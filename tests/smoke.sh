#!/usr/bin/env bash
# The short form of the tests, for an environment besides the usual one: import, tour, the main job for 20 steps, its plans
# for two TPU slices where libtpu is, transformers, and two processes.
#
#     PYTHON=.venv-newest/bin/python tests/smoke.sh
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export SPMD_PROGRAM_CACHE=0
"$python" -W error -c 'import spmd, fsdp'
for partitioner in gspmd shardy; do
    SPMD_PARTITIONER=$partitioner "$python" -m pytest -q -p no:cacheprovider tests/test_tour.py
    "$python" recipes/train_gpt.py --partitioner "$partitioner" --steps 20 --sample 20 --out "$out"
done
# Either order of imports, where no tensor is on the device.
for order in "spmd, transformers" "transformers, spmd"; do
    "$python" -c "import $order; from transformers import LlamaForCausalLM, Trainer"
done
if "$python" -c "import libtpu" 2>/dev/null; then
    for target in v5e:2x4 tpu7x:2x2x1; do "$python" recipes/train_gpt.py --target "$target" --out "$out"; done
fi
"$python" -m pytest -q -p no:cacheprovider tests/processes/test_processes.py -k "TestTraining and test_losses"
