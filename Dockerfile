# refold and its command. What it runs is mounted at /app:
#   docker build -t refold . && docker run -v .:/app:ro -e REFOLD_LOG=… refold worker shop:app

FROM python:3.13-slim AS build
WORKDIR /src
COPY requirements-services.lock ./
RUN python -m venv /opt/refold \
 && /opt/refold/bin/pip install --no-cache-dir --require-hashes -r requirements-services.lock
COPY pyproject.toml README.md LICENSE ./
COPY services services
COPY schemas schemas
COPY projections projections
COPY tools tools
COPY examples examples
COPY docs/errors docs/errors
RUN /opt/refold/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.13-slim
COPY --from=build /opt/refold /opt/refold
ENV PATH=/opt/refold/bin:$PATH PYTHONUNBUFFERED=1
RUN useradd --system --uid 10001 refold && install -d -o refold -m 700 /var/lib/refold
USER refold
WORKDIR /app
ENTRYPOINT ["refold"]
