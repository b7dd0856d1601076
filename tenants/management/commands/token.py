"""``manage.py token USER``: an access token to the management API, for automation."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from tenants import services
from tenants.audit import Actor


class Command(BaseCommand):
    help = "Creates an access token that acts as a user, and prints it once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user", help="User name.")
        parser.add_argument("--name", default="automation", help="What it is for.")
        parser.add_argument("--days", type=int, default=0, help="Days until it expires; 0 (default): never.")

    def handle(self, *args: Any, **options: Any) -> None:
        user = get_user_model()._default_manager.filter(username=options["user"]).first()
        if user is None:
            raise CommandError(f"There is no user {options['user']!r}. `manage.py createsuperuser` makes one.")
        if options["days"] < 0:
            raise CommandError("--days: use 0 or more.")
        issued = services.issue_token(
            actor=Actor.at_shell(),
            user=user,
            name=options["name"],
            expires_at=timezone.now() + timedelta(days=options["days"]) if options["days"] else None,
        )
        self.stdout.write(issued.credential.text)
