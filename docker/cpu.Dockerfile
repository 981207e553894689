# The program and the Python package, for CPUs (x86_64). From the root of the repository:
#   docker build -t colossal -f docker/cpu.Dockerfile .
#
# The image starts a server. Keys are needed, because the server in a container listens on all addresses:
#   docker run --rm -p 127.0.0.1:8000:8000 -v MODEL:/model:ro -v KEYS:/keys.txt:ro colossal \
#     --from=/model --api-key-file=/keys.txt
# Any other command, and Python:
#   docker run --rm -v "$PWD:/work" -w /work --entrypoint colossal colossal train CONFIG
#   docker run --rm -v "$PWD:/work" -w /work --entrypoint python colossal train.py
# MODEL is the folder of a model, KEYS a file of keys. The user 10001 must be able to read both, and to write to /work.

FROM debian:12-slim AS build
WORKDIR /colossal
COPY colossal.sh ./
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates \
 && ./colossal.sh packages
# PyTorch's own index, because the torch of Python's registry has 2 GB for GPUs.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python3 -m venv /opt/colossal \
 && /opt/colossal/bin/pip install --no-cache-dir --index-url "$TORCH_INDEX" torch==2.13.0 numpy
COPY . .
# The wheel has the libraries that it needs, except those of torch. So the next stage installs no library.
RUN LIBTORCH_ROOT=$(echo /opt/colossal/lib/python3.*/site-packages/torch) COLOSSAL_TORCH=cpu ./colossal.sh wheel \
 && /opt/colossal/bin/pip install --no-index --no-deps build/dist/*.whl

FROM debian:12-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends curl python3 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --no-create-home --home-dir / --shell /usr/sbin/nologin colossal
COPY --from=build /opt/colossal /opt/colossal
ENV PATH=/opt/colossal/bin:$PATH
RUN colossal info --no-measure && python -c 'import colossal, torch'
USER 10001
EXPOSE 8000
# /health answers 503 while the model loads, which takes minutes for a large model on a slow disk.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
  CMD ["curl", "--fail", "--silent", "--output", "/dev/null", "http://127.0.0.1:8000/health"]
ENTRYPOINT ["colossal", "serve", "--host=0.0.0.0"]
CMD ["--help"]
