"""The catalog as one YAML document: export, difference, apply (``docs/guide/manifest.md``)."""

from tenants.manifest.document import export
from tenants.manifest.plan import Change, Plan, apply, plan
from tenants.manifest.reader import ManifestError, read

__all__ = ["Change", "ManifestError", "Plan", "apply", "export", "plan", "read"]
