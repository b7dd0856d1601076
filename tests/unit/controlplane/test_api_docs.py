"""The API's page: Swagger UI in the console's colours."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from tests.support import worlds

pytestmark = pytest.mark.django_db


def test_the_page_of_the_api_follows_the_consoles_colours() -> None:
    api = APIClient()
    api.force_login(worlds.build().users["adam"])
    page = api.get("/api/v1/docs").content.decode()
    assert 'id="swagger-ui"' in page
    assert "html.dark-mode body" in page
    assert "Loading the description of the management API" in page
    script = api.get("/api/v1/docs", {"script": ""}).content.decode()
    assert "qm_theme" in script
    assert "SwaggerUIBundle" in script, "Swagger's own script follows"
