"""Who is let in: hosts, origins, tokens, cookies, methods, headers."""

import re
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from charter.dashboard.app import build_app
from charter.dashboard.guard import (
    allowed_hosts,
    cookie_name,
    csrf_of,
    fetched_from_elsewhere,
    origin_allowed,
    session_of,
)
from charter.dashboard.site import Settings, check_settings, is_loopback, token_from
from charter.errors import UsageError

TOKEN = "correct-horse-battery-staple-0123456789"
PORT = 8765
HOME = f"http://127.0.0.1:{PORT}"
COOKIE = cookie_name(PORT)
EVERY_HEADER = {
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def test_without_the_token_no_page_is_shown(stranger, case, at):
    for path in ("/", at(), at("cost"), at("stage/sft"), "/live", "/p/nothing", "/assets/app.js"):
        answer = stranger.get(path)
        assert answer.status_code == 401, path
        assert "demo" not in answer.text


def test_scripts_send_the_token_as_a_header_and_read_alone(stranger, case):
    refused = stranger.get("/api/v1/runs")
    assert (refused.status_code, refused.headers["content-type"].split(";")[0]) == (401, "text/plain")
    for given, status in ((f"Bearer {TOKEN}", 200), ("Bearer wrong", 401), ("Bearer", 401), (f"Basic {TOKEN}", 401)):
        assert stranger.get("/api/v1/runs", headers={"authorization": given}).status_code == status, given
    bearer = {"authorization": f"Bearer {TOKEN}"}
    for path in ("/api/v1", "/api/v1/openapi.json"):
        assert stranger.get(path, headers=bearer).json()["openapi"] == "3.1.0", path
        assert stranger.get(path).headers["content-type"].startswith("text/plain"), "a script can read no page"
    assert stranger.get("/", headers=bearer).status_code == 401, "pages need a session"
    assert stranger.post("/api/v1/runs", headers=bearer).status_code in (401, 403)


def test_the_token_gives_a_strict_cookie_and_leaves_the_address(stranger, case):
    answer = stranger.get("/", params={"token": TOKEN, "view": "all"})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert TOKEN not in answer.text
    assert 'url=/?view=all"' in answer.text
    assert stranger.get("/").status_code == 200


@pytest.mark.parametrize("given", ["", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "\u0000", "\U0001f680"])
def test_another_token_gives_nothing(stranger, given):
    answer = stranger.get("/", params={"token": given})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("value", ["", TOKEN, csrf_of(TOKEN), session_of(TOKEN)[:-1], session_of("another" * 8)])
def test_another_cookie_gives_nothing(stranger, value):
    stranger.cookies.set(COOKIE, value)
    assert stranger.get("/").status_code == 401


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example", "/%2f%2fevil.example", "///evil.example/p"])
def test_the_token_page_never_leads_to_another_site(stranger, path):
    answer = stranger.get(f"{HOME}{path}?token={TOKEN}")
    targets = re.findall(r'(?:url=|href=")([^"]*)"', answer.text)
    assert targets
    assert all(re.match(r"/(?![/\\])", target) for target in targets), targets


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8765", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:8765", "[::2]:8765", ""],
)
def test_another_host_is_refused(client, host):
    """A page whose name was pointed at this machine (DNS rebinding) is not this server."""
    assert client.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", [f"localhost:{PORT}", f"LOCALHOST:{PORT}", f"[::1]:{PORT}"])
def test_its_own_names_are_known(client, host):
    assert client.get("/", headers={"host": host}).status_code in (200, 401)


def test_every_answer_carries_the_headers(client, stranger, case, at):
    for path in ("/", at(), at("cost"), "/nothing", "/p/nothing", at("stage/nothing"), "/sign-in"):
        answer = client.get(path)
        for name, value in EVERY_HEADER.items():
            assert answer.headers[name] == value, (path, name)


def test_the_policy_lets_no_inline_script_or_style_in(client):
    policy = client.get("/").headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "base-uri 'none'" in policy
    assert not re.search(r"https?:|\*", policy)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(client, at, method):
    assert client.request(method, at()).status_code == 405


def test_a_post_needs_its_own_origin(client):
    for origin in (None, "null", "http://evil.example", f"https://127.0.0.1:{PORT}", "http://127.0.0.1:1"):
        headers = {"x-charter-csrf": csrf_of(TOKEN), **({"origin": origin} if origin else {})}
        assert client.post("/sign-out", headers=headers).status_code == 403, origin


def test_a_post_needs_the_csrf_token(client):
    for given in (None, "", session_of(TOKEN), csrf_of("another" * 8)):
        headers = {"origin": HOME, **({"x-charter-csrf": given} if given is not None else {})}
        assert client.post("/sign-out", headers=headers).status_code == 403, given


def test_a_post_needs_the_session(stranger):
    answer = stranger.post("/sign-out", headers={"origin": HOME, "x-charter-csrf": csrf_of(TOKEN)})
    assert answer.status_code == 401


def test_sign_out_takes_the_session(client):
    answer = client.post("/sign-out", headers={"origin": HOME, "x-charter-csrf": csrf_of(TOKEN)})
    assert answer.status_code == 200
    assert client.get("/").status_code == 401


def test_sign_in_by_form(stranger):
    wrong = stranger.post("/sign-in", data={"token": "no"}, headers={"origin": HOME})
    assert wrong.status_code == 401
    elsewhere = stranger.post("/sign-in", data={"token": TOKEN}, headers={"origin": "http://evil.example"})
    assert elsewhere.status_code == 403
    right = stranger.post("/sign-in", data={"token": TOKEN}, headers={"origin": HOME})
    assert right.status_code == 200
    assert stranger.get("/").status_code == 200


def test_no_large_body_is_read(client, stranger):
    own = {"origin": HOME, "x-charter-csrf": csrf_of(TOKEN)}
    assert client.post("/sign-out", headers=own, content=b"x" * 70_000).status_code == 413
    assert client.post("/sign-out", headers=own, content=iter([b"x"])).status_code == 413, "of a length nobody says"
    assert client.get("/").status_code == 200
    form = {"token": TOKEN, "more": "x" * 70_000}
    assert stranger.post("/sign-in", data=form, headers={"origin": HOME}).status_code == 401


def test_a_token_in_the_address_lets_no_post_in(stranger):
    answer = stranger.post("/sign-out", params={"token": TOKEN}, headers={"origin": HOME})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


def test_under_tls_cookie_and_answers_stay_there(settings, tmp_path):
    secure = replace(settings, certificate=tmp_path / "certificate.pem", key=tmp_path / "key.pem")
    with TestClient(build_app(secure, PORT), base_url=HOME.replace("http:", "https:")) as client:
        answer = client.get("/", params={"token": TOKEN})
    assert "Secure" in answer.headers["set-cookie"]
    assert "max-age" in answer.headers["strict-transport-security"]


def test_a_get_changes_no_file(client, case, at):
    def state():
        return {
            path: path.stat().st_mtime_ns for path in case.root.rglob("*") if path.is_file() and "-shm" not in path.name
        }

    client.get(at())
    before = state()
    for path in ("/", at(), at("cost"), at("stage/sft"), at("stage/pm")):
        assert client.get(path).status_code == 200
    assert state() == before


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_parts_cannot_be_fetched_by_another_site(client, site):
    assert client.get("/", headers={"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}).status_code == 403
    assert client.get("/", headers={"sec-fetch-site": site, "sec-fetch-mode": "navigate"}).status_code == 200
    assert not fetched_from_elsewhere({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"})


TRAVERSAL = [
    "/assets/../settings.py", "/assets/..%2fsettings.py", "/assets/%2e%2e/%2e%2e/charter.yaml", "/assets/....//app.css",
    "/assets/..\\..\\etc\\passwd", "/assets//etc/passwd", "/assets/app.css%00.js", "/assets/app.css/../../x",
    "/p/../../etc/passwd", "/p/..%2f..%2fetc%2fpasswd", "/p/%2fetc%2fpasswd", "/p/%00",
    "/p/demo/stage/..%2f..%2f..%2fcharter.yaml", "/p/demo/stage/%2e%2e", "/p/file:%2f%2f%2fetc%2fpasswd",
]  # fmt: skip


def test_no_path_leads_out(client, case):
    answers = {path: client.get(HOME + path) for path in TRAVERSAL}
    assert {path: answer.status_code for path, answer in answers.items() if answer.status_code not in (400, 404)} == {}
    assert [path for path, answer in answers.items() if "root:" in answer.text or "pipeline:" in answer.text] == []


@pytest.mark.parametrize("name", ["../../charter.yaml", "sft/../pm", "/etc/passwd", "sft\x00"])
def test_a_stage_is_a_name_that_is_looked_up(client, at, name):
    from urllib.parse import quote

    assert client.get(at("stage/" + quote(name, safe=""))).status_code == 404


def test_origins_are_compared_whole():
    hosts = frozenset({"127.0.0.1:8765"})
    assert origin_allowed("http://127.0.0.1:8765", scheme="http", allowed=hosts)
    for origin in (
        "http://127.0.0.1:8765.evil.example",
        "http://127.0.0.1:87650",
        "127.0.0.1:8765",
        "ws://127.0.0.1:8765",
    ):
        assert not origin_allowed(origin, scheme="http", allowed=hosts)


def test_a_server_for_all_addresses_answers_only_to_names_that_were_given(tmp_path):
    settings = Settings(
        roots=(), token=TOKEN, host="0.0.0.0", names=("gpu.example",), certificate=tmp_path, key=tmp_path
    )
    assert allowed_hosts(settings, 443) == {"gpu.example:443", "gpu.example"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "gpu.example", ""])
def test_beyond_loopback_needs_tls(host):
    with pytest.raises(UsageError, match="TLS"):
        check_settings(Settings(roots=(), token=TOKEN, host=host))


@pytest.mark.parametrize("token", ["", "short", "x" * 31, "y" * 40 + "\n", "z" * 40 + "\u00e9"])
def test_a_weak_token_is_refused(token):
    with pytest.raises(UsageError, match="token"):
        check_settings(Settings(roots=(), token=token))


def test_certificate_and_key_belong_together(tmp_path):
    file = tmp_path / "certificate.pem"
    file.write_text("")
    with pytest.raises(UsageError, match="belong together"):
        check_settings(Settings(roots=(), token=TOKEN, certificate=file))
    with pytest.raises(UsageError, match="no such file"):
        check_settings(Settings(roots=(), token=TOKEN, certificate=file, key=tmp_path / "missing.pem"))


def test_the_token_is_referred_to_never_given(tmp_path, monkeypatch):
    monkeypatch.setenv("UI_TOKEN", TOKEN)
    (tmp_path / "token").write_text(TOKEN + "\n")
    assert token_from("env:UI_TOKEN") == token_from(f"file:{tmp_path / 'token'}") == TOKEN
    for reference in (TOKEN, "env:", "env:NOT_SET_ANYWHERE", "file:", "file:/no/such/file"):
        with pytest.raises(UsageError) as error:
            token_from(reference)
        assert TOKEN not in str(error.value) or reference == TOKEN
    assert len({token_from(None) for _ in range(20)}) == 20


def test_the_token_is_in_no_representation():
    assert TOKEN not in repr(Settings(roots=(), token=TOKEN))


@pytest.mark.parametrize(
    ("host", "found"), [("127.8.8.8", True), ("::1", True), ("localhost", True), ("localhost.evil", False)]
)
def test_loopback(host, found):
    assert is_loopback(host) is found
