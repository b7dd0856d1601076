"""The web server around Django and ``/v1``: connections, bodies, logins and error pages within limits."""
