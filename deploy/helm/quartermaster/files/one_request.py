"""`helm test`: the Service answers, strangers are refused, and with a key a model answers once."""

import json
import os
import sys
import urllib.error
import urllib.request

url, key, model = os.environ["URL"], os.environ.get("KEY", "").strip(), os.environ.get("MODEL", "")
LIMIT_S = float(os.environ.get("LIMIT_S", "120"))
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # HTTP_PROXY leads elsewhere
PAGE = "See docs/guide/kubernetes.md, Troubleshoot."


def ask(path, body=None, key=""):
    """Status and text. As a proxy that ends TLS asks, so that nobody is sent to https."""
    headers = {"content-type": "application/json", "x-forwarded-proto": "https"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url + path, json.dumps(body).encode() if body else None, headers)
    try:
        with DIRECT.open(request, timeout=LIMIT_S) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except OSError as error:
        reason = getattr(error, "reason", error)
        sys.exit(
            f"{url} does not answer ({reason}): are web pods ready, and does a NetworkPolicy let this one in? {PAGE}"
        )


def said(text):
    """The message of an error, or the beginning of what came instead."""
    try:
        return json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return text[:500]


page = "/readyz" if key else "/readyz?of=process"  # without a key there may be no pool yet
status, text = ask(page)
if status != 200:
    sys.exit(f"{page} answered {status}: {text[:500]}. {PAGE}")
status, text = ask("/v1/models")
if status != 401:
    sys.exit(f"/v1/models without a key answered {status} instead of 401: is {url} Quartermaster's Service?")
if not key:
    print("ready, and strangers are refused; set test.existingSecret to ask a model as well")
    sys.exit(0)
status, text = ask("/v1/models", key=key)
if status == 401:
    sys.exit(f"the key of test.existingSecret is refused: {said(text)}")
if status != 200:
    sys.exit(f"/v1/models answered {status}: {said(text)}")
models = [one["id"] for one in json.loads(text)["data"]]
if not models:
    sys.exit("the key opens no model: make a pool, and an entitlement to it that the key belongs to")
model = model or models[0]
message = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "Say hello."}]}
status, text = ask("/v1/chat/completions", message, key)
if status != 200:
    sys.exit(f"{model} answered {status}: {said(text)}")
print(f"ready, strangers are refused, and {model} answers")
