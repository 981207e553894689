# The server, for CPUs (x86_64). From the root of the repository:
#   docker build -f docker/cpu.Dockerfile -t colossal:cpu .
#   docker run --rm -p 127.0.0.1:8000:8000 -v MODEL:/model:ro -v KEYS:/keys.txt:ro colossal:cpu \
#     --from=/model --api-key-file=/keys.txt
# MODEL is the folder of a model, KEYS a file of keys; the user 10001 must be able to read both. Keys are needed, because
# the server in a container listens on all addresses.

FROM debian:12-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends build-essential ca-certificates cmake git python3 python3-venv
WORKDIR /colossal
COPY . .
# Installs the other packages, and LibTorch for CPUs into .venv, and builds the program.
RUN COLOSSAL_TORCH=cpu ./colossal.sh --version
# The next stage gets the folder /image: both programs, and the libraries of LibTorch at the paths where these look.
RUN mkdir -p /image/usr/local/bin \
 && cp build/release/colossal build/release/colossal-torch /image/usr/local/bin/ \
 && strip /image/usr/local/bin/* \
 && ldd build/release/colossal-torch | awk '$3 ~ "^/colossal/" { print $3 }' \
    | xargs realpath -s | xargs cp --parents -t /image

FROM debian:12-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends curl libjpeg62-turbo libpcre2-8-0 libpng16-16 libspdlog1.10 \
    libtomlplusplus3 liburing2 libutf8proc2 libxxhash0 libzstd1 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --no-create-home --home-dir / --shell /usr/sbin/nologin colossal
COPY --from=build /image/ /
RUN ! ldd /usr/local/bin/colossal /usr/local/bin/colossal-torch | grep 'not found'
USER 10001
EXPOSE 8000
# /health answers 503 while the model loads, which takes minutes for a large model on a slow disk.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
  CMD ["curl", "--fail", "--silent", "--output", "/dev/null", "http://127.0.0.1:8000/health"]
ENTRYPOINT ["colossal", "serve", "--host=0.0.0.0"]
CMD ["--help"]
