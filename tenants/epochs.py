"""The highest epoch ever given, where a lost Redis cannot take it back: ``scheduling.dispatch.ports.EpochFloor``."""

from __future__ import annotations

from django.db import close_old_connections

from tenants.models import EpochFloor


class BookedEpochs:
    """Epoch floors in the database. A floor never falls, whatever order the calls arrive in."""

    def read(self, pool: str) -> int:
        """The pool's floor; 0 when it never had a leader."""
        close_old_connections()
        try:
            return EpochFloor.objects.filter(pool=pool).values_list("epoch", flat=True).first() or 0
        finally:
            close_old_connections()

    def raise_to(self, pool: str, epoch: int) -> None:
        """Lifts the pool's floor to ``epoch`` if it is lower."""
        close_old_connections()
        try:
            EpochFloor.objects.get_or_create(pool=pool)
            EpochFloor.objects.filter(pool=pool, epoch__lt=epoch).update(epoch=epoch)
        finally:
            close_old_connections()
