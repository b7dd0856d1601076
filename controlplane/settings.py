"""Django's settings, derived from :mod:`controlplane.env`. Nothing here reads the environment itself."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from controlplane import env_loading
from controlplane.database_address import parse_database_url
from controlplane.env import SettingsError
from controlplane.json_log import take_what_bypasses_logging
from controlplane.secret_key import secret_key
from tenants.unfold import UNFOLD as CATALOG_UNFOLD

# Until ControlplaneConfig.ready: modules that load are no garbage, and looking for some took a third of a start.
gc.disable()

try:
    ENV = env_loading.load()
    SECRET_KEY = secret_key(ENV)
    SECRET_KEY_FALLBACKS = ENV.fallback_keys
except SettingsError as error:
    raise ImproperlyConfigured(str(error)) from None

BASE_DIR = Path(__file__).resolve().parent.parent
HOME = ENV.home.absolute()

DEBUG = ENV.debug
DEFAULT_EXCEPTION_REPORTER = "controlplane.web.debug.Reporter"
DEFAULT_EXCEPTION_REPORTER_FILTER = "controlplane.web.debug.NothingSecret"
ALLOWED_HOSTS = ENV.hosts
ROOT_URLCONF = "controlplane.urls"
ASGI_APPLICATION = "controlplane.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
USE_I18N = False
FORMAT_MODULE_PATH = "controlplane.formats"

INSTALLED_APPS = [
    *(["unfold", "unfold.contrib.filters"] if ENV.back_office else []),  # before the admin, whose templates it replaces
    "django.contrib.admin" if ENV.back_office else "django.contrib.admin.apps.SimpleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "servestatic",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "channels",
    "allauth",
    "allauth.account",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "allauth.socialaccount.providers.saml",
    "allauth.usersessions",
    "allauth.mfa",
    "tenants",
    "telemetry",
    "controlplane",
    "controlplane.batches",
    "controlplane.responses",
]

MIDDLEWARE = [
    "controlplane.web.error_pages.UntrustedProxy",
    "django.middleware.security.SecurityMiddleware",
    "controlplane.web.security.ContentSecurityPolicy",
    "controlplane.web.security.NotKept",
    "controlplane.web.plain_text.PlainText",
    "controlplane.web.error_pages.DatabaseUnavailable",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "controlplane.web.security.LoginThrottle",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "controlplane.signin.second_factor.Enforced",
    "allauth.account.middleware.AccountMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "controlplane" / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]


def _database() -> dict[str, Any]:
    """SQLite in HOME, or PostgreSQL through a bounded pool (CONN_MAX_AGE stays 0: the pool keeps connections)."""
    if not ENV.database_url:
        if not (HOME / "db.sqlite3").exists():
            HOME.mkdir(parents=True, exist_ok=True)
        return {
            "ENGINE": "controlplane.sqlite",
            "NAME": HOME / "db.sqlite3",
            "TEST": {"NAME": ":memory:"},  # as for Django's own engine, which pytest knows by its name
            "OPTIONS": {
                # A deferred transaction that reads first fails "locked" at once when it comes to write: 1,840 of
                # 2,400 did. An immediate one waits its turn.
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            },
        }
    from controlplane.database import CONNECT_S, BoundedConnection  # not every installation has its driver

    address = parse_database_url(ENV.database_url)
    options: dict[str, Any] = {"connect_timeout": CONNECT_S} | address.options
    pool = {
        "connection_class": BoundedConnection,
        "min_size": 1,
        "max_size": ENV.database_pool,
        "timeout": ENV.database_timeout_s,  # while all of them are busy
        # Attempts to connect again come ever more slowly until they are given up; then the next question begins anew.
        # Given up after five minutes, as by default, an outage of one minute lasted nearly two.
        "reconnect_timeout": 4,
    }
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": address.name,
        "USER": address.user,
        "PASSWORD": address.password,
        "HOST": address.host,
        "PORT": address.port,
        "CONN_MAX_AGE": 0,
        "OPTIONS": options | {"pool": pool},
    }


DATABASES = {"default": _database()}

if ENV.redis_url:
    CHANNEL_LAYERS: dict[str, Any] = {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            # redis-py 8 cuts idle readers after 5 s and refuses the 101st connection unless told otherwise.
            "CONFIG": {
                "hosts": [{"address": ENV.redis_url, "socket_timeout": None, "max_connections": 2000}],
                "prefix": "qm:channels",
            },
        }
    }
    CACHES: dict[str, Any] = {
        "default": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": ENV.redis_url,
            "KEY_PREFIX": "qm:cache",
            # Django's own would unpickle what is in Redis: who writes there could run code in the web process.
            "OPTIONS": {
                "serializer": "controlplane.web.cache.JsonSerializer",
                "socket_timeout": 1,
                "socket_connect_timeout": 0.5,
            },
        }
    }
else:
    CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

# Files of batches. Several machines share them: every process that serves or works has to see the same.
STORAGES: dict[str, Any] = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    "batches": {
        "BACKEND": ENV.file_storage,
        "OPTIONS": ENV.file_storage_settings
        or {"location": HOME / "files", "file_permissions_mode": 0o600, "directory_permissions_mode": 0o700},
    },
}

STATIC_URL = "/static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
FRONTEND_DIST = BASE_DIR / "frontend" / "dist"
STATICFILES_DIRS = [("console", FRONTEND_DIST)] if FRONTEND_DIST.is_dir() else []
# An image collects its files once at build; a checkout serves them from where they lie.
SERVESTATIC_USE_FINDERS = not STATIC_ROOT.is_dir()
SERVESTATIC_USE_MANIFEST = False
SERVESTATIC_AUTOREFRESH = False
SERVESTATIC_MAX_AGE = 3600


def SERVESTATIC_ADD_HEADERS_FUNCTION(headers: Any, path: str, url: str) -> None:
    """The console's built files change their names with their contents: browsers need not ask again."""
    if url.startswith("/static/console/assets/"):
        headers["Cache-Control"] = "max-age=31536000, public, immutable"


LOGIN_URL = "/login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login"
PASSWORD_HASHERS = ["controlplane.web.hashing.PasswordHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]

# django-allauth does the sign-in through a provider; accounts of our own are made by admins and invitations.
ACCOUNT_ADAPTER = "controlplane.signin.adapters.AccountAdapter"
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*"]
ACCOUNT_USERNAME_BLACKLIST = ["quartermaster"]  # as the audit log calls this installation
ACCOUNT_UNIQUE_EMAIL = False  # accounts are never joined by an address
SOCIALACCOUNT_ADAPTER = "controlplane.signin.adapters.ProviderAdapter"
SOCIALACCOUNT_LOGIN_ON_GET = True  # a form that ends at the provider would need its hosts in the security policy
SOCIALACCOUNT_OPENID_CONNECT_URL_PREFIX = ""
SOCIALACCOUNT_REQUESTS_TIMEOUT = 5
SOCIALACCOUNT_STORE_TOKENS = False  # in clear; tenants.people seals them
SOCIALACCOUNT_PROVIDERS: dict[str, Any] = {
    "openid_connect": {
        "OAUTH_PKCE_ENABLED": True,
        "APPS": [
            {
                "provider_id": "sso",
                "name": ENV.oidc_name,
                "client_id": ENV.oidc_client_id,
                "secret": ENV.oidc_secret,
                "settings": {"server_url": ENV.oidc_issuer, "scope": ENV.oidc_scopes.split()},
            }
        ]
        if ENV.oidc_issuer
        else [],
    },
    "saml": {"APPS": ENV.saml_apps},
}
MFA_ADAPTER = "controlplane.signin.adapters.SecondFactorAdapter"
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_RECOVERY_CODE_COUNT = 10
MFA_TOTP_ISSUER = "Quartermaster"
MFA_TOTP_TOLERANCE = 1  # steps of 30 s before and after: clocks of phones differ, and people type slowly
QUARTERMASTER_SECOND_FACTOR = ENV.second_factor
QUARTERMASTER_TOKEN_DAYS = ENV.token_days
QUARTERMASTER_OIDC_ISSUER = ENV.oidc_issuer
QUARTERMASTER_OIDC_CLIENT_ID = ENV.oidc_client_id
QUARTERMASTER_OIDC_CLIENT_SECRET = ENV.oidc_secret if ENV.oidc_issuer else ""
QUARTERMASTER_OIDC_NAME = ENV.oidc_name
QUARTERMASTER_OIDC_GROUPS_CLAIM = ENV.oidc_groups_claim
QUARTERMASTER_OIDC_RECHECK_S = ENV.oidc_recheck_s
QUARTERMASTER_OIDC_END_KEYS = ENV.oidc_end_keys
QUARTERMASTER_SAML_ISSUER = next((app["settings"]["idp"]["entity_id"] for app in ENV.saml_apps), "")
QUARTERMASTER_SAML_NAME = ENV.saml_name
QUARTERMASTER_SAML_GROUPS_ATTRIBUTE = ENV.saml_groups_attribute
QUARTERMASTER_SAML_HOURS = ENV.saml_hours

# Cookies know no ports: without the port in the name, two instances on one machine would end each other's sessions,
# and a login at one would refuse every form that is open at the other.
SESSION_ENGINE = "controlplane.signin.sessions"
SESSION_COOKIE_NAME = f"qm_session_{ENV.port}"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_AGE = 12 * 3600
CSRF_COOKIE_NAME = f"qm_csrf_{ENV.port}"
CSRF_COOKIE_SAMESITE = "Lax"
CSRF_TRUSTED_ORIGINS = ENV.origins
CSRF_FAILURE_VIEW = "controlplane.web.error_pages.form_refused"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = ENV.https
SECURE_SSL_REDIRECT = ENV.https
SECURE_HSTS_SECONDS = 31_536_000 if ENV.https else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = ENV.https and ENV.hsts_subdomains
SECURE_HSTS_PRELOAD = ENV.https and ENV.hsts_preload
# Other names of the domain may have no HTTPS, and a preload list is hard to leave: whoever owns it decides on both.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
# No SECURE_PROXY_SSL_HEADER, which would believe everybody: controlplane.asgi sets the scheme from trusted proxies.
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
DATA_UPLOAD_MAX_MEMORY_SIZE = (
    2 * 1024 * 1024
)  # of any request: controlplane/web/body_limits.py; less than Django spools to disk
DATA_UPLOAD_MAX_NUMBER_FIELDS = 5000

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "tenants.api.authentication.AccessTokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
        "tenants.api.authentication.PasswordAuthentication",
    ],
    # Deny by default: a view that declares no permissions serves nobody.
    "DEFAULT_PERMISSION_CLASSES": ["controlplane.web.security.Nobody"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["tenants.api.inputs.BoundedJSONParser"],
    "EXCEPTION_HANDLER": "tenants.api.faults.answer",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_PAGINATION_CLASS": "tenants.api.inputs.Page",
    "PAGE_SIZE": 100,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Quartermaster management API",
    "DESCRIPTION": "Tenants, tiers, pools, backends, entitlements, keys, usage and audit.",
    "VERSION": "1",
    "ENUM_NAME_OVERRIDES": {  # choices of more than one answer, or of fields of one name
        "BatchStatus": "controlplane.batches.models.Status.choices",
        "CredentialStatus": ["active", "expired", "revoked"],
        "InFlightState": "telemetry.api.answers.IN_FLIGHT",
        "LabRunState": "telemetry.models.LabRun.STATES",
        "RequestOutcome": "telemetry.models.OUTCOMES_OF_REQUESTS",
        "BudgetScope": "tenants.models.metering.BudgetScope.choices",
        "TokenScope": "tenants.models.credentials.TokenScope.choices",
        "InvitationStatus": ["open", "used", "revoked", "expired"],
        "RoleGiven": "tenants.models.people.Role.choices",
        "ScalingMode": "tenants.models.capacity.ScalingMode.choices",
        "TuningMode": "tenants.models.tuning.TuningMode.choices",
        "StudyState": "tenants.models.tuning.StudyState.choices",
    },
    "SERVE_INCLUDE_SCHEMA": False,
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "tenants.api.schema.say_optional",
        "tenants.api.schema.say_trials",
    ],
    "SERVE_PERMISSIONS": ["rest_framework.permissions.IsAuthenticated"],
    "SWAGGER_UI_DIST": "SIDECAR",
    # A link inside each operation's button is one control in another: a screen reader cannot tell them apart.
    "SWAGGER_UI_SETTINGS": {"deepLinking": False, "persistAuthorization": False},
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}

# The console's accent (frontend/src/app.css): unfold uses 600 on light ground and 500 on dark.
_BLUE = {
    "50": "#eef4fe", "100": "#dbe7fd", "200": "#c2d7fc", "300": "#a8c6fb", "400": "#92b7f9", "500": "#7ba7f7",
    "600": "#2b5fc7", "700": "#244fa6", "800": "#1e4188", "900": "#1a366f", "950": "#112347",
}  # fmt: skip
UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Quartermaster",
    "SITE_HEADER": "Quartermaster",
    "SITE_URL": "/",
    "SITE_SYMBOL": "package_2",
    "SHOW_HISTORY": True,
    "COLORS": {"primary": _BLUE},
    "SHOW_VIEW_ON_SITE": False,
}
UNFOLD |= CATALOG_UNFOLD  # the catalog knows which pages belong together

QUARTERMASTER_RETENTION_DAYS = ENV.retention_days
QUARTERMASTER_WEBSOCKETS_PER_USER = ENV.max_websockets_per_user
QUARTERMASTER_ALERT_WEBHOOK = ENV.alert_webhook
QUARTERMASTER_PUBLIC_URL = ENV.public_url
QUARTERMASTER_PAGERDUTY_URL = ENV.pagerduty_url
EMAIL_TIMEOUT = 5.0  # as for webhooks
MAIL_SERVER = ENV.mail_server
EMAIL_HOST = MAIL_SERVER.host  # empty: no e-mail is sent
EMAIL_PORT = MAIL_SERVER.port
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = MAIL_SERVER.user, MAIL_SERVER.password
EMAIL_USE_TLS, EMAIL_USE_SSL = MAIL_SERVER.scheme == "smtp+tls", MAIL_SERVER.scheme == "smtps"
DEFAULT_FROM_EMAIL = ENV.email_from or f"quartermaster@{EMAIL_HOST}"
QUARTERMASTER_WEBHOOK_HOSTS = ENV.webhook_hosts
QUARTERMASTER_WEBHOOK_SECRET = ENV.webhook_secret
QUARTERMASTER_WEBHOOK_PROXY = ENV.webhook_proxy
QUARTERMASTER_WEBHOOK_PROXY_EXCEPT = ENV.webhook_proxy_except
QUARTERMASTER_REDIS_URL = ENV.redis_url  # empty: nobody listens for the catalog's notification
QUARTERMASTER_BASIC_AUTH = ENV.basic_auth

TASKS = {
    "celery.worker.strategy": {"level": "WARNING"},
    "celery.app.trace": {"filters": ["routine", "database_repeats"]},
}
if ENV.log_format == "json":
    take_what_bypasses_logging()
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {
        "repeats": {"()": "controlplane.log_dedup.Repeats"},
        "other_words": {"()": "controlplane.log_dedup.Repeats", "by_words": True},
        "routine": {"()": "controlplane.log_dedup.Routine"},
        "flood": {"()": "controlplane.log_dedup.Flood"},
        "unacknowledged": {"()": "controlplane.log_dedup.Repeats", "begins": "Couldn't "},
        "database_repeats": {"()": "controlplane.log_dedup.Repeats", "database_only": True},
    },
    "formatters": {
        "text": {"()": "controlplane.log_dedup.Line", "format": "%(asctime)s %(levelname)s %(name)s %(message)s"},
        "json": {"()": "controlplane.json_log.JsonLine"},
    },
    "handlers": {
        "stderr": {
            "class": "logging.StreamHandler",
            "formatter": ENV.log_format,
            "stream": sys.stderr,
            "filters": ["flood"],  # here, and not at loggers: a logger's filter does not see its children's lines
        }
    },
    "root": {"handlers": ["stderr"], "level": ENV.log_level},
    "loggers": {
        "django.request": {"level": "ERROR", "filters": ["database_repeats"]},  # a 404 is not news
        "django.security.DisallowedHost": {"filters": ["repeats"]},  # strangers decide how often
        "channels_redis.pubsub": {"filters": ["repeats"]},
        "psycopg": {"filters": ["repeats"]},  # each write on a full disk leaves a pipeline that is given up
        # A server that restarts refuses first, and what is wrong then (a certificate, a password) comes after it.
        "psycopg.pool": {"filters": ["other_words"]},
        "celery.worker.consumer.consumer": {"filters": ["repeats"]},
        "kombu.asynchronous.hub": {"filters": ["repeats"]},  # a timer of Celery's that asks Redis once a second
        # They try every few seconds, also where nobody takes what they send.
        "controlplane.tuning.starter": {"filters": ["repeats"]},
        "controlplane.batches.starter": {"filters": ["repeats"]},
        "celery.worker.request": {"filters": ["unacknowledged"]},  # a task that ends while Redis is away
        **({} if ENV.log_level == "DEBUG" else TASKS),
        "httpx": {"level": "WARNING"},
        "httpcore": {"level": "WARNING"},
    },
}
