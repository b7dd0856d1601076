"""The API's page: Swagger UI in the console's colours."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
import yaml
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer2
from rest_framework.test import APIClient

from tenants.api import description
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


def test_the_description_of_the_api_is_made_once_however_often_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes half a second of CPU, and any member may read it."""
    monkeypatch.setattr(description, "_made", {})
    with patch.object(SchemaGenerator, "get_schema", return_value={"openapi": "3.0.3"}) as making:
        with ThreadPoolExecutor(8) as several:
            made = set(several.map(description.described, [OpenApiJsonRenderer2()] * 8))
        assert len(made) == 1
        assert making.call_count == 1
        api = APIClient()
        api.force_login(worlds.build().users["nora"])
        for form in ("application/json", "application/yaml", "application/json", "application/yaml"):
            assert api.get("/api/v1/schema", HTTP_ACCEPT=form).status_code == 200
        assert making.call_count == 2


def test_the_description_of_the_api_is_the_same_as_json_and_as_yaml() -> None:
    api = APIClient()
    api.force_login(worlds.build().users["nora"])
    as_json = api.get("/api/v1/schema", HTTP_ACCEPT="application/json")
    as_yaml = api.get("/api/v1/schema?format=yaml")
    assert as_json["Content-Type"] == "application/json; charset=utf-8"
    told = json.loads(as_json.content)
    assert told == yaml.safe_load(as_yaml.content)
    assert told["info"]["version"] == "1"
    assert "/api/v1/pools/{pool}/trials" in told["paths"]


@pytest.mark.parametrize("version", ["2\r\nX-Other: y", '"; filename="other.html', "9" * 5000])
def test_what_an_address_says_does_not_get_into_the_description(version: str) -> None:
    api = APIClient(raise_request_exception=False)
    api.force_login(worlds.build().users["nora"])
    answer = api.get("/api/v1/schema", {"version": version, "format": "json"})
    assert answer.status_code == 200
    assert answer["Content-Disposition"] == 'inline; filename="quartermaster-api.json"'
    assert json.loads(answer.content)["info"]["version"] == "1"
