"""The dashboard of a run whose ledger is on a PostgreSQL server: every page, its stream, a server that goes away."""

import contextlib
import http.client
import importlib.util
import re
import shutil
import sys
import threading
from pathlib import Path

import psycopg
import pytest
from dashboard_server import Server, next_version
from sqlalchemy import insert, select
from starlette.testclient import TestClient
from waiting import eventually

from charter.dashboard.app import PAGES, build_app
from charter.dashboard.reading import key_of
from charter.dashboard.site import Settings
from charter.ledger import Ledger
from charter.ledger.opening import open_database
from charter.ledger.schema import tables_of
from charter.ledger.store import LEDGER_FILE

ROLE, PASSWORD, WRONG = "ada", "hunter2-of-the-ledger", "mistaken-for-the-ledger"
TOKEN, PORT = "correct-horse-battery-staple-0123456789", 8765
CLIENTS, ROUNDS, MOST_CONNECTIONS = 20, 2, 3
STAGES = ("a", "b", "c")
UNREAD = "the ledger could not be read"


@pytest.fixture(scope="module")
def addresses(postgres):
    """Makes databases of a role that has to give a password, which every process here has from its environment."""
    rules = postgres.data / "pg_hba.conf"
    rules.write_text(f"host all {ROLE} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'")
        connection.execute("SELECT pg_reload_conf()")

    def make():
        address = postgres.new_database()
        with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {address.rpartition('/')[2]} OWNER TO {ROLE}")
        return address.replace("postgres@", f"{ROLE}@")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGPASSWORD", PASSWORD)
        yield make


@pytest.fixture(scope="module")
def new_workplace():
    """The project of the integration tests."""
    path = Path(__file__).parents[1] / "integration" / "conftest.py"
    spec = importlib.util.spec_from_file_location("integration_workplace", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["integration_workplace"] = module
    spec.loader.exec_module(module)
    return module.make_workplace


def project(work, address):
    work.edit("name: count", f"name: count\nowner: ann\ntags: {{team: kettle}}\nstorage: {{ledger: '{address}'}}")
    work.edit("pipeline:", "resources: {infra: local, price: 3600}\nbudget: {limit: $50}\npipeline:")
    return work


@pytest.fixture(scope="module")
def work(addresses, new_workplace, tmp_path_factory):
    """A run that is done."""
    found = project(new_workplace(tmp_path_factory.mktemp("server") / "count"), addresses())
    done = found.run(COUNTING_MODULE="calling_stage", CALLING_LOG=str(found.root / "provider.jsonl"))
    assert done.code == 0, done.err
    return found


def address_of(work):
    return re.search(r"ledger: '(.*)'", (work.root / "charter.yaml").read_text())[1]


@pytest.fixture(scope="module")
def twin(work, tmp_path_factory):
    """The same run with the same rows in a file."""
    root = tmp_path_factory.mktemp("file") / "count"
    shutil.copytree(work.root, root)
    path = root / "charter.yaml"
    path.write_text(re.sub(r"storage: .*\n", "", path.read_text()))
    source, target = open_database(address_of(work)), open_database(root / "run" / LEDGER_FILE)
    with source.engine.begin() as reading, target.engine.begin() as writing:
        for table in tables_of("sqlite"):
            if rows := [dict(row) for row in reading.execute(select(table)).mappings()]:
                writing.execute(insert(table), rows)
    source.engine.dispose()
    target.engine.dispose()
    return root


def paths(key):
    """The address of every page of a project."""
    found = []
    for page in PAGES:
        stages = STAGES if "{stage}" in page.path else ("",)
        found += [page.path.format(project=key, stage=stage, source="data.chat") for stage in stages]
    return found


@contextlib.contextmanager
def pages_of(*roots):
    """A browser's client of a dashboard in this process."""
    settings = Settings(roots=tuple(roots), token=TOKEN, port=PORT)
    with TestClient(build_app(settings, PORT), base_url=f"http://127.0.0.1:{PORT}") as client:
        assert client.get("/", params={"token": TOKEN}).status_code == 200
        yield client
        client.app.app.state.site.work.close()


def plain(text, key):
    """A page without what differs between two projects of one name: key, moment, how quick this machine is."""
    moments = r'data-version="[^"]*"|<footer>.*</footer>|(?<=data-ago)[^<]*|(?<=This run shows">)[^<]*'
    return re.sub(moments, "", text.replace(key, "KEY"))


def test_every_page_says_what_it_says_of_a_file(work, twin):
    roots = work.root.resolve(), twin.resolve()
    found = []
    with pages_of(work.root.parent, twin.parent) as both:
        for root in roots:
            with pages_of(root.parent) as alone:
                asked = {path: (both if "/p/" in path else alone) for path in paths(key_of(root))}
                answers = {path: client.get(path, params={"wait": "1"}) for path, client in asked.items()}
            assert {path: answer.status_code for path, answer in answers.items() if answer.status_code != 200} == {}
            key = key_of(root)
            found.append({path.replace(key, "KEY"): plain(answer.text, key) for path, answer in answers.items()})
    assert len(found[0]) == len(paths("KEY"))
    for path, text in found[0].items():
        if path != "/p/KEY/plan":  # it holds no figure of the ledger, and measures this machine each time
            assert text == found[1][path], path
    assert UNREAD not in "".join(found[0].values())
    with Ledger.open(address_of(work)) as ledger:
        spent = f"${ledger.total(run='count').micro_usd / 1e6:.2f}"
    for path, words in (("/", spent), ("/p/KEY", spent), ("/p/KEY/cost", spent), ("/p/KEY/cost", "team: kettle")):
        assert words in found[0][path], path
    assert found[0]["/p/KEY/stage/a"].count('data-label="Outcome"') == 1


def test_runs_of_a_server_and_of_a_file_stand_side_by_side(work, twin):
    keys = [key_of(root.resolve()) for root in (work.root, twin)]
    with pages_of(work.root.parent, twin.parent) as client:
        answer = client.get("/compare", params={"run": keys, "wait": "1"})
    assert answer.status_code == 200
    rows = re.findall(r"<tr>.*?</tr>", answer.text)
    first, second = (row for row in rows if 'data-label="Attempts"' in row)
    assert re.sub(r"s[01]", "", first) == re.sub(r"s[01]", "", second)


def test_a_project_that_has_not_run_has_nothing_to_complain_of(addresses, new_workplace, tmp_path):
    fresh = project(new_workplace(tmp_path / "fresh"), addresses())
    assert {stage["attempts"] for stage in fresh.status().values()} == {0}
    with pages_of(fresh.root) as client:
        for path in paths(key_of(fresh.root.resolve())):
            answer = client.get(path)
            assert (answer.status_code, UNREAD in answer.text) == (200, False), path


def test_the_password_is_on_no_page(work):
    key = key_of(work.root.resolve())
    everything = []
    for password, away in ((PASSWORD, False), (WRONG, True)):
        server = Server(work.root, PGPASSWORD=password)
        cookie = server.sign_in()
        answers = [server.ask(path, cookie=cookie) for path in paths(key)]
        assert {answer.status for answer, _ in answers} == {200}
        assert (UNREAD in answers[1][1]) is away
        everything += [server.line, *server.close()]
        everything += [f"{answer.headers}{text}" for answer, text in answers]
    said = "".join(everything)
    assert "password authentication failed" in said
    assert PASSWORD not in said
    assert WRONG not in said


@pytest.mark.parametrize("line", ["'postgresql://ada:{}@h/d'", "'postgresql://ada@h/d?password={}'", "{{a: ada:{}@h"])
def test_a_password_in_the_file_is_on_no_page(new_workplace, tmp_path, line):
    wrong = new_workplace(tmp_path / "wrong")
    wrong.edit("name: count", f"name: count\nstorage: {{ledger: {line.format(PASSWORD)}}}")
    key = key_of(wrong.root.resolve())
    pages = {"/", f"/p/{key}", f"/p/{key}/cost", f"/p/{key}/plan", f"/p/{key}/data", f"/p/{key}/accuracy"}
    with pages_of(wrong.root) as client:
        for path in paths(key):
            answer = client.get(path)
            assert PASSWORD not in f"{answer.headers}{answer.text}", path
            assert path not in pages or "charter.yaml does not load" in answer.text


def test_a_new_attempt_is_told_by_the_stream_and_shown(addresses, new_workplace, tmp_path):
    live = project(new_workplace(tmp_path / "live"), addresses())
    with Ledger.open(address_of(live)) as ledger:
        assert ledger.attempts() == ()
    key = key_of(live.root.resolve())
    server = Server(live.root)
    try:
        cookie = server.sign_in()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
        connection.request("GET", f"/live?project={key}", headers={"Cookie": cookie})
        answer = connection.getresponse()
        first = next_version(answer)
        with Ledger.open(address_of(live)) as ledger:
            number = ledger.begin(
                run="count", stage="a", kind="pretrain", fingerprint="f" * 64, at=1.0, price_micro_usd_per_hour=10**6
            )
            ledger.end(number, at=3601.0, outcome="done")
        assert next_version(answer) != first
        wait_for(lambda: "$1.00" in server.ask(f"/p/{key}/cost", cookie=cookie)[1])
        connection.close()
    finally:
        server.close()


def test_a_server_that_is_away_is_said_and_comes_back(work, postgres):
    key = key_of(work.root.resolve())
    server = Server(work.root)
    cookie = server.sign_in()

    def asked():
        answers = {path: server.ask(path, cookie=cookie) for path in paths(key)}
        assert {answer.status for answer, _ in answers.values()} == {200}
        return {path: text for path, (_, text) in answers.items()}

    run, cost, stage = f"/p/{key}", f"/p/{key}/cost", f"/p/{key}/stage/a"
    before = asked()
    postgres.stop()
    try:
        wait_for(lambda: all(UNREAD in asked()[path] for path in (run, cost, stage, "/")))
        away = asked()
        late = Server(work.root)
        cookie_of_late = late.sign_in()
        assert "not known, and shown as nothing" in late.ask(run, cookie=cookie_of_late)[1]
        assert "nothing can be said of what was spent" in late.ask(cost, cookie=cookie_of_late)[1]
        assert "Traceback" not in "".join(late.close())
    finally:
        postgres.start()
    for path in (run, cost, stage):
        assert "as it was last read, at" in away[path]
        assert "check that the server runs" in away[path]
        assert money(before[path])
        assert money(away[path]) == money(before[path])
    wait_for(lambda: not any(UNREAD in text for text in asked().values()))
    assert money(asked()[cost]) == money(before[cost])
    piece = server.ask(f"/p/{key}/accuracy?wait=1", cookie=cookie)[1]
    assert "cannot be reached" not in piece
    assert "Traceback" not in "".join(server.close())


def test_many_clients_share_few_connections(work, postgres):
    """The server itself refuses one more than the role may have."""
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
        # What earlier tests have left open counts, too, and a backend ends a moment after its client.
        there = f"FROM pg_stat_activity WHERE usename = '{ROLE}'"
        connection.execute(f"SELECT pg_terminate_backend(pid) {there}")
        wait_for(lambda: connection.execute(f"SELECT count(*) {there}").fetchone() == (0,))
        connection.execute(f"ALTER ROLE {ROLE} CONNECTION LIMIT {MOST_CONNECTIONS}")
        key = key_of(work.root.resolve())
        server = Server(work.root)
        try:
            cookie = server.sign_in()
            wrong, asked = [], []

            def client(number):
                for _ in range(ROUNDS):
                    for path in paths(key):
                        answer, text = server.ask(f"{path}?client={number}", cookie=cookie)
                        asked.append(path)
                        if answer.status != 200 or UNREAD in text:
                            wrong.append((path, answer.status))

            threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert wrong == []
            assert len(asked) == ROUNDS * CLIENTS * len(paths(key))
            assert "too many connections" not in "".join(server.close())
        finally:
            server.close()
            connection.execute(f"ALTER ROLE {ROLE} CONNECTION LIMIT -1")


def money(text):
    """The figures of money of a page."""
    return re.findall(r"\$[\d.,]+", text)


def wait_for(condition, seconds=600):
    eventually(condition, seconds=seconds, every=0.2)
