"""Read messages with the schemas of a registry.

They are a byte 0, the id of a schema in 4 bytes, and data, or a byte 1, a GUID in 16 bytes, and data. The clients put
an id that is in a header before the data.
"""

from __future__ import annotations

import math
import ssl
import struct
import time
from abc import abstractmethod
from collections.abc import Callable, Hashable
from functools import partial
from io import BytesIO
from typing import Any, ClassVar, NamedTuple

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import SerializationError

from streameval.errors import InputError
from streameval.events import Fault
from streameval.events.frames import GLUE_REMEDY
from streameval.ingest.background import Background
from streameval.ingest.base import NotYetReadableError
from streameval.ingest.kafka.formats import RegistryFormat
from streameval.ingest.kafka.schemas import SchemaReader

REQUEST_TIMEOUT_SECONDS = 5.0  # for each part of an answer
ANSWER_TIMEOUT_SECONDS = 10.0  # for a whole answer
LOOP_WAIT_SECONDS = 2.0
"""Time for which the reader of messages waits for answers in all. Afterwards it comes back for them later."""
ATTEMPTS, FIRST_PAUSE_SECONDS = 5, 1.0
"""How often the registry is asked for a schema that it refuses. Each pause is twice the last one."""
OUTAGES = {401, 408, 429, 502, 503, 504}
"""Answers that are about the registry, not about one schema, and so are redirects, which are not followed."""
BAD_ANSWER = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors of the library for an answer that is not a schema."""
MAX_ANSWER_BYTES = 16 * 2**20
MAX_PREFIX_BYTES = 1024
"""The library reads integers of any length there, in a time that grows with the square of the length."""


def client_options(settings: RegistryFormat) -> dict[str, Any]:
    """Translate settings into the configuration of `SchemaRegistryClient`."""
    options: dict[str, Any] = {
        "url": settings.registry,
        "timeout": REQUEST_TIMEOUT_SECONDS,
        "max.retries": 0,  # the daemon tries again, and reports meanwhile why it waits
        # without a file the client would trust the authorities of a package, not those of this machine
        "ssl.ca.location": settings.ssl_cafile or ssl.get_default_verify_paths().cafile,
    }
    if settings.username is not None and settings.password is not None:
        options["basic.auth.user.info"] = f"{settings.username}:{settings.password.get_secret_value()}"
    return options


def make_client(settings: RegistryFormat) -> SchemaRegistryClient:
    """Return a client that takes no answer of more than `MAX_ANSWER_BYTES`. The library itself has no limit."""
    client = SchemaRegistryClient(client_options(settings))
    session = client._rest_client.session  # the library has no option for its headers and limits
    session.headers["Accept-Encoding"] = "identity"
    session.event_hooks["response"].append(_limit)
    return client


def _limit(response: Any) -> None:
    """Read the answer of the registry before its client does. Keep only the status of a bad answer with an error.

    Raises:
        ValueError: A schema is too long, or compressed, so that its length is not known.
    """
    content, problem = bytearray(), ""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        problem = "it is compressed, although this was not requested"
    for chunk in () if problem else response.iter_raw():
        content += chunk
        if len(content) > MAX_ANSWER_BYTES:
            problem = f"it has more than {MAX_ANSWER_BYTES} bytes"
            break
    response.close()
    if problem and response.is_success:
        raise ValueError(problem)
    response._content = b"" if problem else bytes(content)


class RegistryReader(SchemaReader):
    """Turn messages into records with the schemas of a registry, each requested once."""

    title: ClassVar[str]
    fetched_as: ClassVar[str | None] = None
    """Let the registry return schemas in this form. None = as they were registered."""

    def __init__(self, settings: RegistryFormat) -> None:
        super().__init__(settings)
        self._url = settings.registry
        self._make_client = partial(make_client, settings)
        self._client = self._make_client()
        self._refusals: dict[Hashable, _Refusal] = {}
        self._pending: tuple[Hashable, Background[tuple[Schema]], float] | None = None
        self._waited = 0.0  # seconds since the caller last went on without all answers

    def __call__(self, message: bytes) -> Any:
        """Return the record of a message, or its `Fault`.

        Raises:
            NotYetReadableError: The registry does not answer.
        """
        prefix, head, data = SchemaId(self.title.upper()), BytesIO(message[:MAX_PREFIX_BYTES]), BytesIO(message)
        indexes: list[int] | None = []
        try:
            prefix.from_bytes(head)
            indexes = prefix.message_indexes
        except (SerializationError, EOFError, struct.error):
            pass  # what the prefix lacks is reported below, with the schema if it has one
        data.seek(head.tell())
        number = prefix.id if prefix.guid is None else prefix.guid
        if number is None:
            first = (
                f"in the frame of AWS Glue: {GLUE_REMEDY}" if message[:1] == b"\3" else "the first byte is not 0 or 1"
            )
            return Fault("malformed", f"not {self.title} with the number of a schema: {first}")
        schema = self._schema(number)
        return schema if isinstance(schema, Fault) else self.record(data, schema, number, indexes)

    def paths(self, topic: str) -> list[str] | None:
        """Return the names of the fields of the newest schema of a topic, as `columns` has them.

        Returns:
            None if the registry has no schema by the usual name.

        Raises:
            InputError: The schema cannot be used.
            NotYetReadableError: The registry does not answer.
        """
        subject = f"{topic}-value"
        newest = self._request(
            ("newest", subject),
            lambda client: client.get_latest_version(subject, fmt=self.fetched_as).schema,
            wait=ANSWER_TIMEOUT_SECONDS,
        )
        return None if isinstance(newest, Fault) else self.paths_of(newest)

    @abstractmethod
    def parse(self, schema: Schema) -> Any:
        """Parse a schema with the schemas that it refers to.

        Raises:
            InputError: It is not a schema, or refers to one that the registry does not have.
            NotYetReadableError: The registry does not answer.
        """

    @abstractmethod
    def paths_of(self, schema: Schema) -> list[str]:
        """Return the names of the fields of a schema. Raise what `parse` raises."""

    def referenced(self, reference: SchemaReference) -> Schema:
        """Return the schema that another one refers to.

        Raises:
            InputError: The registry does not have it.
            NotYetReadableError: The registry does not answer.
        """
        subject, version = reference.subject or "", reference.version or "latest"
        schema = self._request(
            (subject, version), lambda client: client.get_version(subject, version, fmt=self.fetched_as).schema
        )
        if isinstance(schema, Fault):
            message = f"the registry has no version {version} of {subject}: {schema.detail}"
            raise InputError(message, hint="register the schema that it refers to")
        return schema

    def _forget_faults(self) -> None:
        super()._forget_faults()
        self._refusals.clear()

    def _load(self, number: Any) -> Any:
        name, key = ("get_schema", number) if isinstance(number, int) else ("get_schema_by_guid", str(number))
        schema = self._request(key, lambda client: getattr(client, name)(key, fmt=self.fetched_as))
        if isinstance(schema, Fault):
            detail = f"the schema registry has no schema {number}" + (f": {schema.detail}" if schema.detail else "")
            if self._waits:
                raise NotYetReadableError(detail, hint="register the schema, or let on_missing_schema be reject")
            return Fault("malformed", detail)
        if schema.schema_type != self.title.upper():
            return Fault("malformed", f"the schema {number} is {schema.schema_type}, not {self.title}")
        try:
            return self.parse(schema)
        except InputError as error:
            return Fault("malformed", f"the schema {number}: {error.message}")

    def _request(
        self, key: Hashable, request: Callable[[SchemaRegistryClient], Schema], wait: float | None = None
    ) -> Schema | Fault:
        """Return the answer of the registry, or why it has no such schema.

        A thread waits for the answer. A schema that is refused is requested some times, with pauses.

        Args:
            key: Tells the request from others.
            request: Makes the request. Answers are cached by the client.
            wait: Seconds to wait for the answer now. By default as long as the loop waits.

        Raises:
            NotYetReadableError: The registry has not answered yet, or refuses to answer at all.
        """
        refusal = self._refusals.get(key, _Refusal())
        if time.monotonic() < refusal.ask_at:
            raise self._not_yet(refusal.reason)
        try:
            schema = self._answer(key, request, self._left() if wait is None else wait)
        except SchemaRegistryError as error:
            if error.http_status_code == 404:
                return Fault("malformed", "")
            reason = f"{error.http_status_code}: {error.error_message}"
            if error.http_status_code in OUTAGES or error.http_status_code // 100 == 3:
                raise self._not_yet(reason) from error
        except BAD_ANSWER as error:
            reason = f"its answer is not a schema: {error!r}"
        except NotYetReadableError:
            raise
        except Exception as error:  # of the HTTP library, which differs by the version of the client
            raise self._not_yet(str(error) or repr(error)) from error
        else:
            self._refusals.pop(key, None)
            return schema
        pause = FIRST_PAUSE_SECONDS * 2.0**refusal.attempts
        self._refusals[key] = refusal = _Refusal(refusal.attempts + 1, time.monotonic() + pause, reason)
        if refusal.attempts < ATTEMPTS:
            raise self._not_yet(reason)
        self._refusals[key] = refusal._replace(attempts=ATTEMPTS - 1, ask_at=-math.inf)  # once more, after a while
        return Fault("malformed", reason)

    def _left(self) -> float:
        """Return how long the reader of messages may still wait."""
        if self._waited >= LOOP_WAIT_SECONDS:
            raise self._not_yet("it is asked for many schemas, and answers slowly")
        return LOOP_WAIT_SECONDS - self._waited

    def _answer(self, key: Hashable, request: Callable[[SchemaRegistryClient], Schema], wait: float) -> Schema:
        """Return the answer to a request that another thread makes.

        Raises:
            NotYetReadableError: It has not come yet, or not in time.
            Exception: The request raised it.
        """
        if self._pending is None or self._pending[0] != key:
            client = self._client
            self._pending = key, Background(lambda: (request(client),)), time.monotonic() + ANSWER_TIMEOUT_SECONDS
        _, background, deadline = self._pending
        started = time.monotonic()
        try:
            answered = background.result(max(0.0, min(wait, deadline - started)))
        except Exception:
            self._pending = None
            raise
        finally:
            self._waited += time.monotonic() - started
        if answered is not None:
            self._pending = None
            return answered[0]
        if time.monotonic() < deadline:
            raise self._not_yet("it has not answered yet")
        self._client.close()  # ends the thread at its next byte
        self._pending, self._client = None, self._make_client()
        raise self._not_yet(f"no whole answer within {ANSWER_TIMEOUT_SECONDS:.0f} s")

    def _not_yet(self, reason: str) -> NotYetReadableError:
        self._waited = 0.0
        hint = "check source.format: the address of the registry, username and password"
        return NotYetReadableError(f"the schema registry at {self._url} cannot be used: {reason}", hint=hint)


class _Refusal(NamedTuple):
    """Hold how often the registry has refused a schema, when it may be asked again, and why it refused.

    Times are seconds of the monotonic clock.
    """

    attempts: int = 0
    ask_at: float = -math.inf
    reason: str = ""
