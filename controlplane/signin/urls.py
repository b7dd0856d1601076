"""Routes of one's own second factor, under ``/api/v1/``."""

from django.urls import re_path

from controlplane.signin import api

urlpatterns = [
    re_path(r"^second-factor/?$", api.StateView.as_view(), name="second-factor"),
    re_path(r"^second-factor/offer/?$", api.OfferView.as_view(), name="second-factor-offer"),
    re_path(r"^second-factor/enable/?$", api.EnableView.as_view(), name="second-factor-enable"),
    re_path(r"^second-factor/codes/?$", api.CodesView.as_view(), name="second-factor-codes"),
    re_path(r"^second-factor/disable/?$", api.DisableView.as_view(), name="second-factor-disable"),
    re_path(r"^second-factor/challenge/?$", api.ChallengeView.as_view(), name="second-factor-challenge"),
    re_path(r"^second-factor/passkeys/offer/?$", api.PasskeyOfferView.as_view(), name="second-factor-passkey-offer"),
    re_path(r"^second-factor/passkeys/?$", api.PasskeysView.as_view(), name="second-factor-passkeys"),
    re_path(r"^second-factor/passkeys/(?P<passkey>[0-9]{1,18})/?$", api.PasskeyView.as_view(), name="passkey"),
    re_path(
        r"^second-factor/passkeys/(?P<passkey>[0-9]{1,18})/remove/?$",
        api.RemovePasskeyView.as_view(),
        name="passkey-remove",
    ),
]
