# traceana in a container: docker build -t traceana . && docker run --rm -v "$PWD":/work traceana report run.json.gz
# To write into the folder (--output), run as its owner: docker run --user "$(id -u)" …
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml README.md LICENSE /src/
COPY docs/traceana.1 /src/docs/
COPY tools /src/tools
COPY src /src/src
RUN python -m venv /opt/traceana && /opt/traceana/bin/pip install --no-cache-dir '/src[html,excel,duckdb]'

FROM python:3.13-slim
COPY --from=build /opt/traceana /opt/traceana
ENV PATH=/opt/traceana/bin:$PATH
RUN useradd --create-home traceana
USER traceana
WORKDIR /work
ENTRYPOINT ["traceana"]
