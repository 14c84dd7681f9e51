# This library and its recipes for simulated devices on the CPU.
#
#     docker build -f docker/cpu.Dockerfile -t torch-spmd:cpu .
#     docker run torch-spmd:cpu python recipes/train_gpt.py --steps 20
FROM python:3.11-slim
# torch's CPU build: the devices are jax's, so no image needs a CUDA build of torch.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /work
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY spmd spmd
COPY fsdp fsdp
COPY recipes recipes
RUN pip install --no-cache-dir --index-url "${TORCH_INDEX}" torch==2.13.0 \
    && pip install --no-cache-dir -c constraints.txt ".[recipes]" \
    && useradd --create-home --uid 1000 user && chown -R user /work
USER 1000
CMD ["python", "-m", "spmd", "doctor"]
