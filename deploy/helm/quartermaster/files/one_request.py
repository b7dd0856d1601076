"""`helm test`: the Service answers, strangers are refused, and with a key a model answers once."""

import json
import os
import sys
import urllib.error
import urllib.request

url, key, model = os.environ["URL"], os.environ.get("KEY", ""), os.environ.get("MODEL", "")


def ask(path, body=None, key=""):
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url + path, json.dumps(body).encode() if body else None, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


status, body = ask("/readyz")
if status != 200:
    sys.exit(f"/readyz answered {status}: {body[:500]!r}. See docs/guide/kubernetes.md, Troubleshooting.")
status, body = ask("/v1/models")
if status != 401:
    sys.exit(f"/v1/models without a key answered {status} instead of 401")
if key:
    status, body = ask("/v1/models", key=key)
    if status != 200:
        sys.exit(f"/v1/models answered {status}: {body[:500]!r}")
    model = model or json.loads(body)["data"][0]["id"]
    message = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "Say hello."}]}
    status, body = ask("/v1/chat/completions", message, key)
    if status != 200:
        sys.exit(f"{model} answered {status}: {body[:500]!r}")
print("ready" + (f", and {model} answers" if key else ""))
