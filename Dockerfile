# refold and its command. What it runs is mounted at /app:
#   docker build -t refold . && docker run -v .:/app:ro -e REFOLD_LOG=… refold worker shop:app

FROM python:3.13-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements-services.lock requirements-compile.lock ./
RUN python -m venv /opt/refold \
 && /opt/refold/bin/pip install --no-cache-dir --require-hashes -r requirements-services.lock
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements-compile.lock
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY services services
COPY schemas schemas
COPY projections projections
COPY tools tools
COPY examples examples
COPY docs/errors docs/errors
RUN HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 /opt/build/bin/pip wheel --no-deps --no-build-isolation -w /wheel . \
 && /opt/refold/bin/pip install --no-cache-dir --no-deps /wheel/*.whl

FROM python:3.13-slim
COPY --from=build /opt/refold /opt/refold
ENV PATH=/opt/refold/bin:$PATH PYTHONUNBUFFERED=1
RUN useradd --system --uid 10001 refold && install -d -o refold -m 700 /var/lib/refold
USER refold
WORKDIR /app
ENTRYPOINT ["refold"]
