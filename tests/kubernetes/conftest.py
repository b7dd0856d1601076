"""One API server, one instance and one catalog for all tests of this folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator

import pytest
import yaml

from controlplane.kubernetes.chart import CHART
from controlplane.kubernetes.resources import RESOURCES
from tests.support.chart import EVERYTHING, render
from tests.support.instance import Up
from tests.support.kubernetes_cluster import Cluster, cluster, missing
from tests.support.kubernetes_engines import Engines
from tests.support.kubernetes_operator import NARROW, OLDER, OPERATOR, OTHERS, STRANGER, WORKER, Catalog, operating
from tests.support.ports import free_port


@pytest.fixture(scope="session")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if why := missing():
        pytest.skip(why)
    with cluster(tmp_path_factory.mktemp("kubernetes"), (OPERATOR, NARROW, WORKER, STRANGER)) as found:
        for name in ("llm", "inference", "research"):
            found.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for resource in RESOURCES:
            found.create(yaml.safe_load((CHART / "crds" / f"{resource.plural}.yaml").read_text()))
        for resource in RESOURCES:
            found.wait(lambda r=resource: found.client.get(found.path(r.kind)).status_code == 200)
        for made in render(EVERYTHING):
            if made["apiVersion"] not in OTHERS:
                found.create(made | {"apiVersion": OLDER.get(made["apiVersion"], made["apiVersion"])}, "llm")
        yield found


@pytest.fixture(scope="session")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Web, worker and Redis beside the cluster, as its pods would run them."""
    up = Up(tmp_path_factory.mktemp("instance") / "home").start()
    try:
        yield up.wait_ready()
    finally:
        up.stop()


@pytest.fixture(scope="session")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    made = Catalog(tmp_path_factory.mktemp("catalog") / "home")
    made.manage("migrate", "--noinput")
    return made


@pytest.fixture
def operator(there: Cluster, catalog: Catalog) -> Iterator[subprocess.Popen[bytes]]:
    with operating(there, catalog) as process:
        yield process


@pytest.fixture
def names(there: Cluster) -> Iterator[Callable[[str, str], str]]:
    """Names of this test's own; what has one is deleted after it, in the order in which it may be."""
    made: list[tuple[str, str]] = []
    own = os.urandom(3).hex()

    def name(kind: str, what: str) -> str:
        made.append((kind, f"{what}-{own}"))
        return f"{what}-{own}"

    yield name
    for kind, what in reversed(made):
        there.client.delete(there.path(kind, what))


@pytest.fixture
def engines(there: Cluster) -> Iterator[Callable[[str], Engines]]:
    made: list[Engines] = []

    def make(app: str) -> Engines:
        made.append(Engines(there, app, free_port()))
        return made[-1]

    yield make
    for one in made:
        for name in one.processes:
            one.end(name)
            one.delete(name, 0)
