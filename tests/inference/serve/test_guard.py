"""Who is answered: holders of the token, or this machine by its own names; and what a browser may do with the page."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest
from serving import served
from test_limits import photo, predictor

from paceline.inference.serve.limits import is_loopback

TOKEN = "a-token-of-24-characters"


def test_without_the_token_nothing_of_the_model_is_told_and_no_upload_is_read():
    with served(predictor(), TOKEN) as service:
        for wrong in ({}, {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": "Bearer"}):
            for path, body in (("/model", None), ("/predict", photo())):
                reply = service.ask(path, body, **wrong)
                reply.refused(401, "token")
                assert reply.headers["www-authenticate"] == "Bearer"
        # The head alone: the answer comes before any of the body.
        head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
        assert service.raw(head, end=True).startswith(b"HTTP/1.1 401")
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert service.ask("/predict", photo(), **right).status == 200
        assert service.ask("/model", **right, Host="models.example.org", Origin="https://models.example.org").status == 200
        assert [service.ask(path).status for path in ("/", "/health", "/openapi.json")] == [200, 200, 200]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200), ({"Host": "localhost"}, 200), ({"Host": "[::1]:80"}, 200), ({"Host": "127.0.0.1:1"}, 200),
        ({"Host": "localhost:5", "Origin": "http://localhost:5"}, 200),
        ({"Host": "rebound.example.org"}, 403), ({"Host": "127.0.0.1.example.org"}, 403), ({"Host": "[::1"}, 403),
        ({"Host": "localhost:5", "Origin": "http://localhost:6"}, 403), ({"Origin": "https://example.org"}, 403),
        ({"Origin": "null"}, 403), ({"Origin": "http://[::1"}, 403),
    ],
)  # fmt: skip
def test_without_a_token_only_this_machine_is_answered_and_no_page_from_elsewhere(service, headers, status):
    reply = service.ask("/predict", photo(), **headers)
    assert reply.status == status
    assert "access-control-allow-origin" not in reply.headers
    if status == 403:
        reply.refused(403)


@pytest.fixture(scope="module")
def service():
    with served(predictor()) as one:
        yield one


def test_the_page_runs_its_own_script_and_style_and_fetches_nothing_from_elsewhere(service):
    page = service.ask("/")
    policy, text = page.headers["content-security-policy"], page.body.decode()
    assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy and "http" not in policy
    for kind in ("script", "style"):
        (own,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, flags=re.S)
        assert base64.b64encode(hashlib.sha256(own.encode()).digest()).decode() in policy
    assert not re.search(r"(src|href)=\"(https?:)?//", text) and "@import" not in text and ' style="' not in text
    assert page.headers["x-content-type-options"] == "nosniff"


def test_addresses_of_this_machine_alone():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.5", "example.org", "", "localhost.example.org")))
