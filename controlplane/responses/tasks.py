"""What a worker does about kept responses."""

from __future__ import annotations

from controlplane.responses import services
from telemetry.tasks import minutely

minutely.append(services.tidy)
