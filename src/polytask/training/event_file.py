"""A file of events for TensorBoard."""

import os
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

VERSION = "brain.Event:2"


class EventFile:
    """Writes events at once. An OSError comes from the call that met it; torch's SummaryWriter has a thread for them,
    and what fails there ends the run later.

    TensorBoard drops the events of earlier files from the step `start` on.
    """

    def __init__(self, folder: Path, start: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = path.open("xb", buffering=0)
        began = SessionLog(status=SessionLog.START)
        now = time.time()
        self._write(Event(wall_time=now, file_version=VERSION), Event(wall_time=now, step=start, session_log=began))

    def add(self, events: Iterable[tuple[float, int, Mapping[str, float]]]) -> None:
        """Write events: when, at which step, and the values by name."""
        self._write(
            *(
                Event(wall_time=when, step=step, summary=Summary(value=[value(*one) for one in values.items()]))
                for when, step, values in events
            )
        )

    def close(self) -> None:
        self._file.close()

    def _write(self, *events: Event) -> None:
        self._file.write(b"".join(record(event.SerializeToString()) for event in events))


def value(name: str, number: float) -> Summary.Value:
    return Summary.Value(tag=name, simple_value=number)


def record(content: bytes) -> bytes:
    """A record of a TFRecord file: length, checksum of the length, content, checksum of the content."""
    length = struct.pack("<Q", len(content))
    return length + checksum(length) + content + checksum(content)


def checksum(content: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(content))
