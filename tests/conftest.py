"""What holds for all tests: worlds are not traced line by line, Ctrl-C reaches processes, and
who needs a server says so by a fixture of here: `broker`, `own_broker`, `registry_url`, `postgres`.
"""

import os
import signal
from collections.abc import Iterator

import coverage
import pytest

from refold_tools.devstack import REGISTRY, Ports, Stack
from support.kafka_broker import Broker, SharedBroker
from support.postgres import Postgres

# A shell lets its background jobs ignore Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A server of a test lives for a minute: what a JVM compiles thoroughly would never pay.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


@pytest.fixture(autouse=True)
def _untraced(request: pytest.FixtureRequest) -> Iterator[None]:
    """Stop the coverage's tracer, which doubles the time, for what is marked `untraced`.

    Such a test runs the same lines some millions of times; others are there for each line. The
    processes that it starts are not traced either: by this variable they would know to be.
    """
    tracer = coverage.Coverage.current() if request.node.get_closest_marker("untraced") else None
    if tracer is None:
        yield
        return
    tracer.stop()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
        try:
            yield
        finally:
            tracer.start()


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """This test process's Postgres, started for the first test that wants it."""
    one = Postgres(tmp_path_factory.mktemp("postgres"))
    try:
        yield one
    finally:
        one.delete()


@pytest.fixture
def postgres(postgres_server: Postgres) -> Iterator[str]:
    """The URL of a fresh database, dropped afterwards."""
    url = postgres_server.new_database()
    try:
        yield url
    finally:
        postgres_server.drop(url)


LONG = {
    "tests/system/test_kafka_chaos.py": 100,
    "tests/system/test_compiled.py": 90,
    "tests/simulation/test_seeds.py": 50,
    "tests/simulation/test_kill_matrix.py": 50,
    "tests/simulation/test_recorded_conversations.py": 25,
    "tests/conformance/test_kafka_log.py": 50,
    "tests/conformance/test_confluent_registry.py": 25,
    "tests/system/test_kafka_registry.py": 45,
    "tests/system/test_kafka_access.py": 10,
    "tests/system/test_kafka_namespace.py": 25,
    "tests/system/test_kafka_runs.py": 35,
    "tests/system/test_kafka_trimming.py": 20,
    "tests/system/test_live.py": 35,
    "tests/system/test_foreign_commands.py": 20,
    "tests/system/test_projector_killed.py": 35,
    "tests/system/test_devstack.py": 50,
    "tests/system/test_cli_processes.py": 50,
    "tests/system/test_demo.py": 45,
    "tests/system/test_dev.py": 25,
    "tests/system/test_bench.py": 25,
    "tests/system/test_kafka_answers.py": 20,
    "tests/system/test_kafka_faults.py": 25,
    "tests/system/test_page.py": 50,
}
"""Files that take longest, in seconds or so; those that share a broker stand in a row."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let every process of xdist begin with long files, and none be left with one at the end.

    Each gets an equal share of the tests in their order, and who has none left takes those at the
    end of another's: short ones, and none of a file whose servers have been started elsewhere.
    """
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    shares: list[list[pytest.Item]] = [[] for _ in range(count)]
    seconds = [0] * count
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    for name, takes in LONG.items():
        if name in files:
            least = seconds.index(min(seconds))
            shares[least] += files.pop(name)
            seconds[least] += takes
    short = [item for many in files.values() for item in many]
    left = len(items)
    for number, share in enumerate(shares):
        size = left // (count - number)
        more = max(0, size - len(share))
        share += short[:more]
        del short[:more]
        left -= size
    items[:] = [item for share in shares for item in share] + short


SHARED_BROKER = pytest.StashKey[SharedBroker]()


@pytest.fixture(scope="session")
def shared_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharedBroker]:
    """This test process's Kafka broker, started for the first test that wants it."""
    one = request.config.stash[SHARED_BROKER] = SharedBroker(tmp_path_factory)
    try:
        yield one
    finally:
        one.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> object:
    """End the shared broker with the last of the files in a row that want it."""
    done = yield
    shared = item.config.stash.get(SHARED_BROKER, None)
    goes_on = nextitem is not None and (
        nextitem.path == item.path or "broker" in getattr(nextitem, "fixturenames", ())
    )
    if shared is not None and not goes_on:
        shared.end()
    return done


@pytest.fixture(scope="module")
def broker(shared_broker: SharedBroker) -> Broker:
    """A running broker with a second, secure door.

    Others have used it and will: a namespace has a name that no other file uses.
    """
    return shared_broker.running()


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker for the tests of one file: they kill it, and it has little to recover then."""
    one = Broker(tmp_path_factory.mktemp("own-kafka"))
    try:
        yield one
    finally:
        one.end()


@pytest.fixture(scope="module")
def registry_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An Apicurio for the tests of one file, which has no schema yet."""
    folder = tmp_path_factory.mktemp("registry")
    with Stack.up(folder, ports=Ports.free(), services={REGISTRY}, tied=True) as stack:
        yield stack.variables["REFOLD_REGISTRY_URL"]
