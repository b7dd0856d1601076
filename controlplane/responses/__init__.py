"""Responses of ``/v1/responses`` that are kept, where the deployment says so."""
