"""What is kept under the name of a tenant or project ends with it: who gets the name later gets none of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models.signals import post_delete, post_save

from tenants.models import Project, Tenant

NOBODY = ""  # no tenant's name


def when_gone(what: str, forget: Callable[[str, str | None], None]) -> None:
    """Calls ``forget`` with the tenant and the project (None: all of the tenant) in the transaction that deletes it,
    and in the one that makes another of that name, for what was still on its way then."""

    def gone(sender: type[Tenant | Project], instance: Tenant | Project, **_: Any) -> None:
        if isinstance(instance, Tenant):
            forget(instance.slug, None)
        else:
            forget(instance.tenant.slug, instance.slug)

    def comes(created: bool = False, raw: bool = False, **options: Any) -> None:
        if created and not raw:  # a backup that is loaded has what belongs to it
            gone(**options)

    for sender in (Tenant, Project):
        post_delete.connect(gone, sender=sender, dispatch_uid=f"{what} gone", weak=False)
        post_save.connect(comes, sender=sender, dispatch_uid=f"{what} comes", weak=False)
