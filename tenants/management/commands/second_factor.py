"""``manage.py second_factor reset USER``: for an admin who has lost the device and the recovery codes."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from tenants import people, second_factors
from tenants.audit import Actor


class Command(BaseCommand):
    help = "Resets a user's second factor, ends their sessions, and writes both to the audit log."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("action", choices=["reset"])
        parser.add_argument("user", help="User name.")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(username=options["user"]).first()
        if user is None:
            raise CommandError(f"There is no user {options['user']!r}.")
        actor = Actor.at_shell()
        if not second_factors.remove(actor=actor, user=user, action="reset second factor"):
            self.stdout.write(f"{user.get_username()} has no second factor. Nothing was changed.")
            return
        people.end_all(actor=actor, user=user)
        self.stdout.write(f"The second factor of {user.get_username()} was reset, and their sessions ended.")
