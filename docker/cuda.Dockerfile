# As cpu.Dockerfile, for NVIDIA GPUs. The host needs NVIDIA's driver for CUDA 13 and its container toolkit. From the root of the repository:
#   docker build -t colossal:cuda -f docker/cuda.Dockerfile .
#   docker run --rm --gpus all -v "$PWD:/work" -w /work --entrypoint colossal colossal:cuda train CONFIG
# The image was not yet built.

# The version of CUDA is that of torch's wheel: kernels are linked only if its major version and that of nvcc are the same.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04 AS build
WORKDIR /colossal
COPY colossal.sh ./
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates \
 && ./colossal.sh packages
# With the libraries for GPUs: 2.7 GB to download, 5 GB in the image.
RUN python3 -m venv /opt/colossal \
 && /opt/colossal/bin/pip install --no-cache-dir torch==2.13.0 numpy
COPY . .
RUN LIBTORCH_ROOT=$(echo /opt/colossal/lib/python3.*/site-packages/torch) COLOSSAL_TORCH=cuda ./colossal.sh wheel \
 && /opt/colossal/bin/pip install --no-index --no-deps build/dist/*.whl

FROM ubuntu:24.04
RUN apt-get update \
 && apt-get install -y --no-install-recommends curl python3 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --no-create-home --home-dir / --shell /usr/sbin/nologin colossal
COPY --from=build /opt/colossal /opt/colossal
# The container toolkit adds the libraries of the host's driver.
ENV PATH=/opt/colossal/bin:$PATH NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN colossal --version
USER 10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
  CMD ["curl", "--fail", "--silent", "--output", "/dev/null", "http://127.0.0.1:8000/health"]
ENTRYPOINT ["colossal", "serve", "--host=0.0.0.0"]
CMD ["--help"]
