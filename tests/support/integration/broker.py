"""Run a Kafka broker for the tests: Apache Kafka from Maven artifacts, a running one, or a mock cluster."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from kafka.record.util import calc_crc32c

from streameval.ingest.kafka.connection import KafkaConnection
from streameval.ingest.kafka.producer import create_topic
from support.certificates import make_certificate
from support.integration.faulty_cluster import StoppableBroker
from support.integration.which_broker import missing_programs
from support.ports import free_ports

POM = Path(__file__).parent / "kafka" / "pom.xml"
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
USER, PASSWORD = "reader", "a-secret"
START_TIMEOUT = 600.0

# Holds the broker and obeys its standard input: a line asks the broker to shut down, the end of the input kills it.
# The input ends with the test run, even if that crashes.
LEASH = """
import subprocess, sys, threading
broker = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
def obey():
    for _ in sys.stdin:
        broker.terminate()
    broker.kill()
threading.Thread(target=obey, daemon=True).start()
sys.exit(broker.wait())
"""

SERVER_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},SECURE://127.0.0.1:{secure_port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SECURE://127.0.0.1:{secure_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.name.secure.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,OAUTHBEARER
listener.name.secure.oauthbearer.sasl.jaas.config=\
org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";
listener.name.secure.oauthbearer.connections.max.reauth.ms=3600000
listener.name.secure.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_{user}="{password}";
listener.name.secure.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.secure.ssl.keystore.location={keystore}
listener.name.secure.ssl.keystore.type=PEM
log.dirs={data}
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.initial.task.delay.ms=1000
file.delete.delay.ms=1000
metadata.max.idle.interval.ms=0
"""

LOG4J_PROPERTIES = """
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %m (%c)%n
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
"""


class NoBrokerError(Exception):
    """Report why a real broker is not available here."""


class Broker(Protocol):
    """Define the actions of tests on a broker. `stop` and `start` keep the port and the messages."""

    kind: str
    bootstrap: str
    client: str

    @property
    def connection(self) -> KafkaConnection: ...

    def create_topic(self, name: str, partitions: int = 4) -> None: ...

    def stop(self) -> None: ...

    def start(self) -> None: ...

    def close(self) -> None: ...


class RealBroker:
    """Run Apache Kafka in its own process.

    Attributes:
        libraries: Directory of its jars.
        port: Port without TLS.
        secure_port: Port with TLS and a login.
        bootstrap: Address without TLS.
        certificate: File of its certificate.
    """

    kind = "Apache Kafka"
    client = "kafka-python"

    def __init__(self, libraries: Path, home: Path) -> None:
        self.libraries = libraries
        self._home = home
        self._log = home / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self.secure_port, self._controller_port = free_ports(3)
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.certificate, self._key = map(Path, make_certificate(home, "broker"))
        self._configure()

    @property
    def connection(self) -> KafkaConnection:
        return KafkaConnection.model_validate({"bootstrap_servers": self.bootstrap, "client": self.client})

    def secure_connection(self, mechanism: str = "PLAIN", password: str = PASSWORD) -> KafkaConnection:
        """Return a connection by TLS with a login."""
        return KafkaConnection.model_validate(
            {
                "bootstrap_servers": f"127.0.0.1:{self.secure_port}",
                "client": self.client,
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": mechanism,
                "sasl_username": USER,
                "sasl_password": password,
                "ssl_cafile": str(self.certificate),
            }
        )

    def create_topic(self, name: str, partitions: int = 4) -> None:
        create_topic(name, partitions, self.connection)

    def start(self) -> None:
        """Start the broker unless it runs."""
        if self._process is not None:
            return
        first = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", LEASH, *self._java("kafka.Kafka", "server.properties")],
                cwd=self._home,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C must not end the broker while tests clean up
            )
        self._wait_until_started(first)

    def stop(self) -> None:
        """Shut down in order, as for an upgrade."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.write(b"stop\n")
                self._process.stdin.flush()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(15)
        self.kill()

    def kill(self) -> None:
        """End at once, as a power cut does."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()

    close = kill

    @contextmanager
    def moved(self, port: int) -> Iterator[None]:
        """Listen at another port during the block, as after a move to another machine, and at the old one after it."""
        before = self.port
        try:
            self._listen_at(port)
            yield
        finally:
            self._listen_at(before)

    def _listen_at(self, port: int) -> None:
        self.stop()
        properties = self._home / "server.properties"
        properties.write_text(properties.read_text().replace(f":{self.port}", f":{port}"))
        self.port, self.bootstrap = port, f"127.0.0.1:{port}"
        self.start()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Answer no request during the block. Those that wait are answered after it."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    def lose_messages(self, topic: str) -> None:
        """Empty the disk of a topic while the broker is stopped, as if the disk was restored from nothing."""
        for partition in (self._home / "data").glob(f"{topic}-*"):
            for file in partition.iterdir():
                if file.name != "partition.metadata":
                    file.unlink()

    def alter_batch(
        self, topic: str, number: int, change: Callable[[bytearray], None], *, checksum: bool = True
    ) -> None:
        """Change a batch of partition 0 on the disk while the broker is stopped.

        Args:
            topic: Name of the topic.
            number: Index of the batch.
            change: Function that changes the bytes of the batch.
            checksum: Whether to write a correct checksum.
        """
        (segment,) = (self._home / "data" / f"{topic}-0").glob("*.log")
        log, first = bytearray(segment.read_bytes()), 0
        for _ in range(number):
            first += 12 + int.from_bytes(log[first + 8 : first + 12], "big")
        end = first + 12 + int.from_bytes(log[first + 8 : first + 12], "big")
        batch = log[first:end]
        change(batch)
        if checksum:
            batch[17:21] = calc_crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
        log[first:end] = batch
        segment.write_bytes(log)

    def _wait_until_started(self, first: int) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT
        while b"Kafka Server started" not in (text := self._log.read_bytes()[first:]):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise NoBrokerError(f"Kafka did not start; its log ends with:\n{text[-2000:].decode(errors='replace')}")
            time.sleep(0.1)

    def _configure(self) -> None:
        keystore = self._home / "keystore.pem"
        keystore.write_text(self._key.read_text() + self.certificate.read_text())
        properties = SERVER_PROPERTIES.format(
            port=self.port,
            secure_port=self.secure_port,
            controller_port=self._controller_port,
            keystore=keystore,
            data=self._home / "data",
            user=USER,
            password=PASSWORD,
        )
        (self._home / "server.properties").write_text(properties)
        (self._home / "log4j2.properties").write_text(LOG4J_PROPERTIES)
        scram = f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"
        format_log = ["format", "-t", CLUSTER_ID, "-c", "server.properties", "--add-scram", scram]
        run(self._java("kafka.tools.StorageTool", *format_log), self._home)

    def _java(self, main: str, *arguments: str) -> list[str]:
        quick = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        logging = "-Dlog4j2.configurationFile=log4j2.properties"
        return ["java", *quick, logging, "-cp", f"{self.libraries}/*", main, *arguments]


class MockBroker(StoppableBroker):
    """Run the mock cluster, for machines without Java."""

    kind = "mock cluster"


class ExternalBroker:
    """Use the running broker at STREAMEVAL_TEST_KAFKA."""

    kind = "external broker"
    client = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @property
    def connection(self) -> KafkaConnection:
        return KafkaConnection.model_validate({"bootstrap_servers": self.bootstrap, "client": self.client})

    def create_topic(self, name: str, partitions: int = 4) -> None:
        create_topic(name, partitions, self.connection)

    def stop(self) -> None:
        raise NotImplementedError("this broker is not ours to stop")

    start = stop

    def close(self) -> None:
        """Leave the broker alone, because it is not ours to end."""


@contextmanager
def real_broker() -> Iterator[RealBroker]:
    """Run Apache Kafka on free ports with a temporary directory.

    Raises:
        NoBrokerError: It cannot run here.
    """
    libraries = kafka_libraries()
    home = Path(tempfile.mkdtemp(prefix="streameval-kafka-"))
    try:
        broker = RealBroker(libraries, home)
        try:
            broker.start()
            yield broker
        finally:
            broker.kill()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def kafka_libraries() -> Path:
    """Return the directory of the broker's jars. They are fetched once and kept in the user's cache directory."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streameval-tests"
    libraries = cache / f"kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"
    if libraries.is_dir():
        return libraries
    if missing := missing_programs():
        raise NoBrokerError(f"{' and '.join(missing)} not found")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:  # Maven's own store does not allow two at a time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not libraries.is_dir():
            fetch(libraries)
    return libraries


def fetch(libraries: Path) -> None:
    """Let Maven download the jars. A failed download is tried once more, and resumes at its last file."""
    fetched = Path(tempfile.mkdtemp(prefix="fetching-", dir=libraries.parent))
    goal = "dependency:copy-dependencies"
    command = ["mvn", "-B", "-q", "-f", str(POM), goal, "-DincludeScope=runtime", f"-DoutputDirectory={fetched}"]
    try:
        run(command, libraries.parent)
    except NoBrokerError:
        run(command, libraries.parent)
    fetched.rename(libraries)


def run(command: list[str], directory: Path) -> None:
    """Run a program to its end.

    Raises:
        NoBrokerError: The program failed. The message ends with its output.
    """
    try:
        subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoBrokerError(f"{command[0]}: {error}") from error
    except subprocess.CalledProcessError as error:
        raise NoBrokerError(f"{command[0]} failed: {(error.stdout + error.stderr)[-2000:]}") from error
