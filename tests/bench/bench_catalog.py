"""What a large catalog costs a gateway: reading it, holding it, and the next version after one key changed.

    python -m tests.bench.bench_catalog [--keys 50000] [--entitlements 5000] [--pools 200] [--repeats 5]

On a SQLite of its own. Half of the keys open one entitlement, half a project's. A line says: the median and the slowest
time [ms] of reading all of it, of reading it after a tenant was written, after a key was written, and of what the event
loop does with it; and by how much the process grew [MiB].
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from pathlib import Path

TARGET_S, TARGET_MIB = 2.0, 150.0
SECRET = b"secret" * 6


def fill(keys: int, entitlements: int, pools: int) -> None:
    """A catalog of this size, written past the services: only reading it is measured."""
    from tenants.models import ApiKey, CatalogVersion, Entitlement, EntitlementState, Pool, Project, Tenant, Tier

    tier = Tier.objects.get(slug="standard")
    tenants = Tenant.objects.bulk_create(Tenant(slug=f"t{n}") for n in range(entitlements // 10))
    projects = Project.objects.bulk_create(
        Project(slug=f"p{n}", tenant=tenant, aliases={"gpt-4o": f"model-{n % pools}"})
        for n, tenant in enumerate(tenants)
    )
    made = Pool.objects.bulk_create(Pool(slug=f"pool{n}", model=f"model-{n}") for n in range(pools))
    rows = Entitlement.objects.bulk_create(
        Entitlement(
            slug=f"e{n}", tenant=tenants[n // 10 % len(tenants)], project=projects[n // 10 % len(projects)],
            pool=made[n % pools], tier=tier, state=EntitlementState.BOUND,
        )
        for n in range(entitlements)
    )  # fmt: skip
    ApiKey.objects.bulk_create(
        (
            ApiKey(
                public_id=f"k{n:011d}",
                digest=secrets.token_hex(32),
                name=f"key {n}",
                user=f"user-{n % 1000}",
                entitlement=rows[n % entitlements] if n % 2 else None,
                project=None if n % 2 else projects[n % len(projects)],
            )
            for n in range(keys)
        ),
        batch_size=1000,
    )
    CatalogVersion.objects.update_or_create(pk=1, defaults={"version": 1})


def resident_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise LookupError("VmRSS")


def measure(repeats: int) -> None:
    from scheduling.gateway.entry.auth import Keyring
    from tenants import services
    from tenants.audit import SYSTEM
    from tenants.models import Entitlement, Tenant
    from tenants.specs import CatalogReader

    before = resident_mib()
    reader = CatalogReader()
    other, one, rings = [], [], []
    ring = Keyring(reader(), SECRET)
    first = resident_mib() - before
    services.save(actor=SYSTEM, instance=Tenant(slug="first"))  # the log has an entry to go on from
    reader()
    whole = []
    for _ in range(repeats):
        start = time.perf_counter()
        CatalogReader()()
        whole.append(time.perf_counter() - start)
    entitlement = Entitlement.objects.order_by("pk").first()
    for n in range(repeats):
        for times, write in (
            (one, lambda n=n: services.issue_key(actor=SYSTEM, entitlement=entitlement, name=f"new {n}")),
            (other, lambda n=n: services.save(actor=SYSTEM, instance=Tenant(slug=f"new-{n}"))),
        ):
            write()
            start = time.perf_counter()
            catalog = reader()
            times.append(time.perf_counter() - start)
            start = time.perf_counter()
            newer = Keyring(catalog, SECRET)
            newer.without(ring)
            rings.append(time.perf_counter() - start)
            ring = newer
    at_end = resident_mib() - before
    for name, times in (
        ("all of it", whole),
        ("a tenant", other),
        ("a key", one),
        ("keyring, on the event loop", rings),
    ):
        print(f"{name}: {statistics.median(times) * 1000:.1f} ms (slowest {max(times) * 1000:.1f})")
    print(f"held: {first:.0f} MiB after the first load, {at_end:.0f} MiB after {2 * repeats} more")
    print(f"aims: {TARGET_S:g} s, {TARGET_MIB:g} MiB; load average {os.getloadavg()[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=50_000)
    parser.add_argument("--entitlements", type=int, default=5_000)
    parser.add_argument("--pools", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--filled", action="store_true", help=argparse.SUPPRESS)  # the second process
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    import django

    if options.filled:
        django.setup()
        measure(options.repeats)
        return
    with tempfile.TemporaryDirectory() as home:
        os.environ["QUARTERMASTER_HOME"] = home
        os.environ["QUARTERMASTER_SECRET_KEY"] = b64encode(secrets.token_bytes(48)).decode()
        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        fill(options.keys, options.entitlements, options.pools)
        # a process of its own: what this one has freed would hide what the catalog takes
        again = [sys.executable, "-m", "tests.bench.bench_catalog", "--filled", "--repeats", str(options.repeats)]
        subprocess.run(again, check=True)


if __name__ == "__main__":
    main()
