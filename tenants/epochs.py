"""The highest epoch ever given, where a lost Redis cannot take it back: ``scheduling.dispatch.ports.EpochFloor``."""

from __future__ import annotations

from tenants.connections import own_connection
from tenants.models import EpochFloor


class BookedEpochs:
    """Epoch floors in the database. A floor never falls, whatever order the calls arrive in."""

    @own_connection
    def read(self, pool: str) -> int:
        """The pool's floor; 0 when it never had a leader."""
        return EpochFloor.objects.filter(pool=pool).values_list("epoch", flat=True).first() or 0

    @own_connection
    def raise_to(self, pool: str, epoch: int) -> None:
        """Lifts the pool's floor to ``epoch`` if it is lower."""
        EpochFloor.objects.get_or_create(pool=pool)
        EpochFloor.objects.filter(pool=pool, epoch__lt=epoch).update(epoch=epoch)
