"""Know messages by their first bytes, and take the frames of serializers from them, such as the id of a schema."""

from __future__ import annotations

import zlib

from streameval.events.validation import Fault

GLUE_BYTES, GLUE_PLAIN, GLUE_ZLIB = 18, b"\3\0", b"\3\5"
FRAMES = {b"\0": 5, b"\1": 17, GLUE_PLAIN: GLUE_BYTES, GLUE_ZLIB: GLUE_BYTES}
"""Bytes before the content, by the first ones: Confluent's with the number or the GUID of a schema, and the ones of AWS
Glue, plain and compressed by zlib, with the UUID of the version of a schema."""
ARROW_STREAM, ARROW_FILE = b"\xff\xff\xff\xff", b"ARROW1"
"""First bytes of an Arrow IPC stream and of a file. No JSON begins like that."""
REGISTRY_REMEDY, GLUE_REMEDY = (
    f"write source: {{format: {{kind: avro, {option}}}}}, or protobuf"
    for option in ("registry: URL", "schemas: FOLDER")
)
MAX_UNPACKED_BYTES = 2**20  # of a compressed message: by default a broker accepts plain ones up to this size


def unframed(message: bytes) -> bytes:
    r"""Return the JSON in a frame, or the message itself if it has none.

    >>> unframed(b"\0\0\0\0\7{}"), unframed(b"{}")
    (b'{}', b'{}')
    """
    start = next((start for start in FRAMES if message.startswith(start)), None)
    if start is None:
        return message
    content = glue_content(message) if start == GLUE_ZLIB else message[FRAMES[start] :]
    return content if isinstance(content, bytes) and content.startswith(b"{") else message


def frame_fault(message: bytes) -> Fault | None:
    """Return the fault of a compressed message that cannot be unpacked, or None."""
    content = glue_content(message) if message.startswith(GLUE_ZLIB) else b""
    return content if isinstance(content, Fault) else None


def glue_content(message: bytes) -> bytes | Fault:
    """Return what a message in the frame of AWS Glue holds, or its fault."""
    if message[:1] != GLUE_PLAIN[:1] or len(message) < GLUE_BYTES:
        return Fault("malformed", "not in the frame of AWS Glue: a byte 3, the compression, and 16 bytes of a UUID")
    if message.startswith(GLUE_PLAIN):
        return message[GLUE_BYTES:]
    if not message.startswith(GLUE_ZLIB):
        return Fault("malformed", f"the compression {message[1]} in the frame of AWS Glue: expected 0, or 5 for zlib")
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(message[GLUE_BYTES:], MAX_UNPACKED_BYTES + 1)
    except zlib.error as error:
        return Fault("malformed", f"damaged zlib in the frame of AWS Glue: {error}")
    if len(content) > MAX_UNPACKED_BYTES:
        return Fault("malformed", f"more than the limit of {MAX_UNPACKED_BYTES} bytes when it is unpacked")
    if not unpacking.eof or unpacking.unused_data:
        return Fault("malformed", "zlib in the frame of AWS Glue that ends too early, or is followed by other bytes")
    return content
