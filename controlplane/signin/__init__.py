"""Signing in through an identity provider (OIDC), and asking it again whether a person is still there."""
