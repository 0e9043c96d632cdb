# Debian slim, not Alpine: libraries that bayplan will need have no musl wheels.
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY framework framework
COPY plugins plugins
COPY dra dra
COPY remote remote
COPY benchmarks benchmarks
RUN python -m venv /opt/bayplan && /opt/bayplan/bin/pip install --no-cache-dir '.[driver,postgres,traces]'

FROM python:3.11-slim
# openssl makes the certificate of the scheduler's page (configs/deploy/scheduler.yaml).
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openssl \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 65532 --no-create-home --shell /usr/sbin/nologin bayplan
COPY --from=build /opt/bayplan /opt/bayplan
COPY configs /etc/bayplan
# configs/machines is a link to what the package holds.
COPY framework/bayplan/topology/machine/catalog /etc/bayplan/machines
ENV PATH=/opt/bayplan/bin:$PATH PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["bayplan"]
CMD ["--help"]
