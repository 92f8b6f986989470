#!/usr/bin/env python3
"""Writes the corpus seeds: real encodings of each kind, so that the fuzzers start behind the first checks."""
import os
import struct

here = os.path.dirname(os.path.abspath(__file__))


def write(folder, name, data):
    os.makedirs(os.path.join(here, "corpus", folder), exist_ok=True)
    with open(os.path.join(here, "corpus", folder, name), "wb") as f:
        f.write(data)


def record(payload, headers=b"", kind=1, sequence=1):
    body = headers + payload
    head = struct.pack("<IIIIBBHId", 3, len(payload), sequence, 0, kind, 2 if headers else 0, len(headers), 0, 1e12)
    return head + body + b"\0" * (-len(body) % 8)


def frame(records, flags=0, lane=0, sequence=1):
    body = b"".join(records)
    head = struct.pack("<IBBHQQQIIIIQQ", 0x4D4C5231, 1, flags, lane, 5, 7, sequence, len(body), len(records),
                       0, 0, 1, 2)
    return head + body


write("frame", "one", frame([record(b"hello")]))
write("frame", "many", frame([record(bytes(i), sequence=i + 1) for i in range(20)]))
write("frame", "headers", frame([record(b"payload", b"headers", kind=2)], flags=1, lane=3))
write("frame", "wait", frame([], flags=4 | 1))
write("frame", "answer", frame([], flags=4 | 2, sequence=9))
write("frame", "empty-payload", frame([record(b"")]))

write("offer", "offer", struct.pack("<IHHQQIIIII5I", 0x4D4C524F, 1, 64, 5, 0x7F0000001000, 0x101, 1, 17, 16384, 2,
                                    0, 0, 0, 0, 0))
write("offer", "ask", struct.pack("<IBBHQQQQ", 0x4D4C5254, 1, 1, 0, 5, 7, 1, 0))
write("offer", "state", struct.pack("<IBBHQQQQ", 0x4D4C5254, 1, 2, 3, 5, 7, 1, 12345))
