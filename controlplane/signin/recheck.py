"""Asks the identity provider again about everybody whom it let in, a few times a minute.

Runs in web processes, which serve what a person has here. Several share the work: a person who is due is claimed by
writing when they are due next. A provider that does not answer ends nobody.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import close_old_connections
from django.utils import timezone

from controlplane.signin.missing_groups import MissingGroups, elsewhere
from controlplane.signin.provider import Gone, Provider, There, same_issuer
from tenants import people
from tenants.models import Identity

log = logging.getLogger(__name__)

LOOK_S = 2.0
AT_ONCE = 8  # questions under way in one process
A_TURN = 200  # people; those beyond come in the next
TIDY_S = 3600.0


class Recheck:
    """One thread that looks who is due, and a few that ask."""

    def __init__(self, provider: Provider | None, every_s: float, claim: str) -> None:
        self._provider = provider
        self._every = timedelta(seconds=every_s)
        self._claim = claim
        self._missing = MissingGroups()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="people", daemon=True)
        self._silent = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(timeout=10)
        if self._provider is not None:
            self._provider.close()

    def turn(self) -> int:
        """Asks about everybody who is due, and returns how many that were."""
        now = timezone.now()
        due = list(Identity.objects.filter(due_at__lte=now).order_by("due_at").values_list("pk", "due_at")[:A_TURN])
        mine = [pk for pk, at in due if Identity.objects.filter(pk=pk, due_at=at).update(due_at=now + self._every)]
        if not mine:
            return 0
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="people") as several:
            list(several.map(self._one, mine))
        return len(mine)

    def _one(self, pk: int) -> None:
        try:
            self.look(Identity.objects.select_related("user").get(pk=pk))
        except Identity.DoesNotExist:
            pass
        except Exception:
            log.exception("sign-in: a person could not be checked; asked again in %.0f s", self._every.total_seconds())
        finally:
            close_old_connections()

    def look(self, identity: Identity) -> None:
        """Asks about one person, and does what follows."""
        if identity.issuer == settings.QUARTERMASTER_SAML_ISSUER:
            people.end(identity, "Their sign-in ran out, and SAML has no way to ask about them.")
            return
        if self._provider is None or not same_issuer(identity.issuer, settings.QUARTERMASTER_OIDC_ISSUER):
            return  # of a provider that is not configured any more: not asked is not gone
        grant = people.Grant.opened(identity.grant)
        if grant is None:
            people.end(identity, "The key that their sign-in was kept with has changed.")
            return
        match self._provider.ask(identity.subject, grant):
            case There(claims, renewed, by):
                named = {who: people.groups_in(said, self._claim) is not None for who, said in by.items()}
                groups = people.groups_in(claims, self._claim)
                if self._missing.means_none(identity.pk, named) and not elsewhere(claims):
                    groups = []
                people.confirm(identity, groups=groups, grant=renewed)
                self._silent = False
            case Gone(reason):
                people.end(identity, reason)
            case unknown:
                Identity.objects.filter(pk=identity.pk).update(trouble=unknown.why[:200])
                if not self._silent:
                    log.warning("sign-in: people cannot be checked; nobody is removed. %s", unknown.why)
                self._silent = True

    def _run(self) -> None:
        tidy_in_s = 0.0
        while not self._over.wait(LOOK_S):
            try:
                while self.turn() == A_TURN and not self._over.is_set():
                    pass
                tidy_in_s -= LOOK_S
                if tidy_in_s <= 0:
                    tidy_in_s = TIDY_S
                    Session.objects.filter(expire_date__lt=timezone.now()).delete()
            except Exception as error:  # the database is away: said elsewhere
                log.debug("sign-in: nobody was checked (%s)", type(error).__name__)
            finally:
                close_old_connections()


def make_recheck() -> Recheck | None:
    """None where nobody signs in through a provider."""
    provider = None
    if settings.QUARTERMASTER_OIDC_ISSUER:
        provider = Provider(
            settings.QUARTERMASTER_OIDC_ISSUER,
            settings.QUARTERMASTER_OIDC_CLIENT_ID,
            settings.QUARTERMASTER_OIDC_CLIENT_SECRET,
        )
    elif not settings.QUARTERMASTER_SAML_ISSUER:
        return None
    return Recheck(provider, settings.QUARTERMASTER_OIDC_RECHECK_S, settings.QUARTERMASTER_OIDC_GROUPS_CLAIM)
