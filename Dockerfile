# A small image that serves a model on CPUs.
#
#   make wheel PYTHON=python3.12                 the wheel that is installed here, into dist
#   docker build -t ctrbox .
#   docker run --rm -p 8000:8000 -e CTRBOX_TOKEN -v "$PWD/model:/model:ro" ctrbox
#
# A server that is reachable from outside asks for a token: CTRBOX_TOKEN, or `serve /model --host 0.0.0.0 --token-file FILE`.
# Arguments after the image's name take the place of CMD, such as `docker run --rm ctrbox serve --help`.
FROM python:3.12-slim

# TORCH_INDEX is the address of a package index with CPU builds of torch. Without it, torch comes from pip's own index, which
# has the CUDA build; that one works, too, and makes the image several gigabytes larger.
ARG TORCH_INDEX=""
# The slim image has no compiler, so everything must come as a wheel. The extra `serve` brings orjson, gRPC and NATS, `traces` OpenTelemetry.
COPY dist/ctrbox-*-cp312-abi3-*.whl /wheels/
RUN pip install --no-cache-dir --only-binary :all: ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch \
 && pip install --no-cache-dir --only-binary :all: "$(ls /wheels/ctrbox-*"_$(uname -m).whl")[serve,traces]" \
 && rm -r /wheels

RUN useradd --create-home --uid 10001 ctrbox
USER ctrbox
WORKDIR /home/ctrbox
EXPOSE 8000

ENTRYPOINT ["ctrbox"]
CMD ["serve", "/model", "--host", "0.0.0.0"]
