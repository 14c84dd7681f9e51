# This library and its recipes for NVIDIA GPUs; the machine needs their driver, and docker its container toolkit: docker run --gpus all.
#
#     docker build -f docker/gpu.Dockerfile -t torch-spmd:gpu .
#     docker run torch-spmd:gpu python recipes/train_gpt.py --steps 20
FROM python:3.11-slim
# torch's CPU build: the devices are jax's, so no image needs a CUDA build of torch.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /work
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY spmd spmd
COPY fsdp fsdp
COPY recipes recipes
RUN pip install --no-cache-dir --index-url "${TORCH_INDEX}" torch==2.13.0 \
    && pip install --no-cache-dir -c constraints.txt ".[recipes]" "jax[cuda12]==0.10.2" \
    && useradd --create-home --uid 1000 user && chown -R user /work
USER 1000
CMD ["python", "-m", "spmd", "doctor"]
