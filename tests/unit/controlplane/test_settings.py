"""Settings: one table, checked at start, with messages a person can act on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controlplane import env_loading
from controlplane.database_address import parse_database_url
from controlplane.env import SettingsError, table
from controlplane.secret_key import secret_key

ROOT = Path(__file__).resolve().parents[3]


def test_an_empty_environment_gives_the_defaults():
    env = env_loading.load({})
    assert (env.port, env.host, env.max_body_bytes, env.embedded) == (8000, "127.0.0.1", 4 * 1024 * 1024, True)


def test_an_empty_value_means_the_default():
    assert env_loading.load({"QUARTERMASTER_PORT": "", "DEMO_LOAD": " "}).port == 8000


def test_values_are_read_in_their_types():
    env = env_loading.load(
        {
            "QUARTERMASTER_PORT": "8100",
            "QUARTERMASTER_DRAIN_S": "2.5",
            "QUARTERMASTER_HTTPS": "yes",
            "DEMO_LOAD": "off",
            "QUARTERMASTER_HOME": "/srv/qm",
            "ENGINE": "http://a:1, http://b:2 http://c:3",
        }
    )
    assert (env.port, env.drain_s, env.https, env.demo_load, env.home) == (8100, 2.5, True, False, Path("/srv/qm"))
    assert env.engines == ["http://a:1", "http://b:2", "http://c:3"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("QUARTERMASTER_PORT", "many", "use a whole number"),
        ("QUARTERMASTER_PORT", "70000", "at most 65535"),
        ("QUARTERMASTER_PORT", "0", "at least 1"),
        ("QUARTERMASTER_PORT", "tcp://10.0.0.1:80", "enableServiceLinks"),
        ("QUARTERMASTER_DRAIN_S", "nan", "at least 0"),
        ("QUARTERMASTER_DEBUG", "perhaps", "on or off"),
        ("QUARTERMASTER_LOG_LEVEL", "loud", "DEBUG, INFO"),
        ("QUARTERMASTER_DATABASE_URL", "mysql://u:p@h/d", "postgresql://"),
        ("QUARTERMASTER_REDIS_URL", "http://h", "redis://"),
        ("QUARTERMASTER_SECRET_KEY", "short", "32 characters"),
        ("ENGINE", "localhost:8000", "http://host:port"),
        ("QUARTERMASTER_TRUSTED_PROXIES", "10.0.0.1, proxy.internal", "IP address or a network"),
        ("QUARTERMASTER_TRUSTED_PROXIES", "*", "IP address or a network"),
        ("QUARTERMASTER_HSTS_PRELOAD", "on", "QUARTERMASTER_HSTS_SUBDOMAINS"),
        ("QUARTERMASTER_EXT_AUTHZ_S", "600", "QUARTERMASTER_EXT_AUTHZ_TOKEN"),
        ("QUARTERMASTER_EXT_AUTHZ_TOKEN", "short", "16 characters"),
    ],
)
def test_a_fault_names_the_setting_and_what_it_should_be(name, value, said):
    with pytest.raises(SettingsError) as caught:
        env_loading.load({name: value})
    assert name in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "command",
    [
        "serve --port {port} --gpu {gpu}",
        "serve --port {port} --config '{\"a\": 1}'",
        "serve --port {port} '{",
        "a {port} '",
    ],
)
def test_a_replicas_command_that_cannot_be_filled_in_is_told_before_a_replica_is_asked_for(command):
    with pytest.raises(SettingsError, match="REPLICA_COMMAND: cannot be filled in"):
        env_loading.load({"QUARTERMASTER_REPLICA_COMMAND": command})


def test_braces_of_json_are_written_twice_in_a_replicas_command():
    command = """serve --port {port} --config '{{"a": 1}}'"""
    assert env_loading.load({"QUARTERMASTER_REPLICA_COMMAND": command}).replica_command == command


def test_all_faults_are_told_at_once():
    with pytest.raises(SettingsError) as caught:
        env_loading.load({"QUARTERMASTER_PORT": "x", "QUARTERMASTER_LOG_LEVEL": "loud"})
    assert "QUARTERMASTER_PORT" in str(caught.value)
    assert "QUARTERMASTER_LOG_LEVEL" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://:sec/ret@h:6379/0", "%2F"),
        ("redis://:sec#ret@h:6379/0", "%23"),
        ("redis://:secret@h1:6379,h2:6379/0", "one host"),
        ("redis://:secret@[::1/0", "one host"),
        ("redis://:secret@h/0?timeout=3", "no option timeout"),
        ("redis://:secret@h?db=1", "the database is the path"),
        ("rediss://:secret@h/0?ssl_cacerts=/ca.pem", "no option ssl_cacerts"),
        ("rediss://:secret@h/0?ssl_ca_certs=/no/ca.pem", "/no/ca.pem"),
        (f"rediss://:secret@h/0?ssl_ca_certs={__file__}", "has no certificates"),
        (f"rediss://:secret@h/0?ssl_certfile={__file__}", "no certificate with its key"),
        ("postgresql://u:sec/ret@h/d", "%2F"),
        ("postgresql://u:secret@h1:5432,h2:5432/d", "?host=a,b"),
        ("postgresql://u:secret@h", "names no database"),
        ("postgresql://u:secret@h/d?sslmode=verify_full", "verify-full"),
        ("postgresql://u:secret@h/d?sslmode=verify-full&sslrootcert=/no/ca.pem", "there is no file /no/ca.pem"),
    ],
)
def test_an_address_that_no_connection_could_use_is_told_at_the_start_without_its_password(url, said):
    name = "QUARTERMASTER_DATABASE_URL" if url.startswith("postgresql") else "QUARTERMASTER_REDIS_URL"
    with pytest.raises(SettingsError) as caught:
        env_loading.load({name: url})
    assert said in str(caught.value)
    assert "sec" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_folder_of_certificates_that_this_user_may_not_look_into_is_told_at_the_start(monkeypatch):
    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refused)
    with pytest.raises(SettingsError, match=r"Permission denied: ./closed/own/ca\.pem"):
        env_loading.load({"QUARTERMASTER_DATABASE_URL": "postgresql://h/d?sslrootcert=/closed/own/ca.pem"})


def test_an_address_of_postgresql_is_read_to_its_end():
    address = parse_database_url("postgresql://a%40b:p%2Fw@h:5433/d%20e?sslmode=verify-full&application_name=qm")
    assert (address.user, address.password, address.host, address.port) == ("a@b", "p/w", "h", "5433")
    assert (address.name, address.options) == ("d e", {"sslmode": "verify-full", "application_name": "qm"})
    assert "p/w" not in repr(address)
    assert parse_database_url("postgresql://u@/d?host=/run/postgresql").host == "/run/postgresql"


def test_secret_values_never_enter_a_message():
    for name in ("QUARTERMASTER_SECRET_KEY", "QUARTERMASTER_DATABASE_URL", "QUARTERMASTER_REDIS_URL"):
        with pytest.raises(SettingsError) as caught:
            env_loading.load({name: "hunter2"})
        assert "hunter2" not in str(caught.value)


def test_secret_values_are_not_in_what_is_printed_of_the_settings():
    env = env_loading.load({"QUARTERMASTER_SECRET_KEY": "k" * 40, "QUARTERMASTER_REDIS_URL": "redis://:hunter2@h/0"})
    assert "kkkk" not in repr(env)
    assert "hunter2" not in repr(env)
    assert "log_level='INFO'" in repr(env)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "llm.example.org"])
def test_debug_pages_are_for_this_machine_only(host):
    with pytest.raises(SettingsError, match="QUARTERMASTER_DEBUG"):
        env_loading.load({"QUARTERMASTER_DEBUG": "on", "QUARTERMASTER_HOST": host})
    for own in ("127.0.0.1", "::1", "localhost"):
        assert env_loading.load({"QUARTERMASTER_DEBUG": "on", "QUARTERMASTER_HOST": own}).debug


def test_proxies_are_trusted_where_they_are_named_and_on_this_machine_with_https():
    assert env_loading.load({}).proxies == []
    assert env_loading.load({"QUARTERMASTER_HTTPS": "on"}).proxies == ["127.0.0.1", "::1"]
    named = {"QUARTERMASTER_HTTPS": "on", "QUARTERMASTER_TRUSTED_PROXIES": "10.0.0.0/24, fd00::7"}
    assert env_loading.load(named).proxies == ["10.0.0.0/24", "fd00::7"]


def test_a_variable_that_is_no_setting_is_found():
    assert env_loading.unknown({"QUARTERMASTER_PROT": "1", "QUARTERMASTER_PORT": "2", "PATH": ""}) == [
        "QUARTERMASTER_PROT"
    ]


def test_an_instance_makes_its_secret_key_once_and_for_its_owner_only(tmp_path):
    env = env_loading.load({"QUARTERMASTER_HOME": str(tmp_path / "home")})
    key = secret_key(env)
    assert len(key) >= 48
    assert secret_key(env) == key
    assert (tmp_path / "home" / "secret-key").stat().st_mode & 0o077 == 0


def test_a_shared_database_needs_a_shared_secret_key():
    env = env_loading.load({"QUARTERMASTER_DATABASE_URL": "postgresql://u@h/d"})
    with pytest.raises(SettingsError, match="SECRET_KEY"):
        secret_key(env)


def test_the_page_of_settings_shows_the_table_as_it_is():
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([^|]+) \| ([^|]*) \| (.+) \|$", page, re.MULTILINE)
    shown = sorted((n, t.strip(), d.strip().strip("`"), m) for n, t, d, m in rows)
    assert shown == sorted(table())


def test_a_secret_may_be_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("k" * 40 + "\n")
    assert env_loading.load({"QUARTERMASTER_SECRET_KEY_FILE": str(path)}).secret_key == "k" * 40
    both = {"QUARTERMASTER_SECRET_KEY_FILE": str(path), "QUARTERMASTER_SECRET_KEY": "s" * 40}
    assert env_loading.load(both).secret_key == "s" * 40
    assert env_loading.unknown({"QUARTERMASTER_SECRET_KEY_FILE": "", "QUARTERMASTER_PORT_FILE": ""}) == [
        "QUARTERMASTER_PORT_FILE"
    ]


@pytest.mark.parametrize("text", [None, "", "\n", "x" * (env_loading.LONGEST_SECRET + 1)])
def test_a_secret_file_that_cannot_be_used_is_named_and_not_shown(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "key"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingsError, match="QUARTERMASTER_SECRET_KEY_FILE") as fault:
        env_loading.load({"QUARTERMASTER_SECRET_KEY_FILE": str(path)})
    assert "xxx" not in str(fault.value)
