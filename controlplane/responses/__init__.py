"""Stored responses of ``/v1/responses``, where the deployment keeps them."""
