#!/usr/bin/env python3
"""Writes the corpus seeds: real encodings of each kind, so that the fuzzers start behind the first checks."""
import os
import struct

here = os.path.dirname(os.path.abspath(__file__))


def write(folder, name, data):
    os.makedirs(os.path.join(here, "corpus", folder), exist_ok=True)
    with open(os.path.join(here, "corpus", folder, name), "wb") as f:
        f.write(data)


def record(payload, headers=b"", kind=1, sequence=1, flags=0):
    body = headers + payload
    head = struct.pack("<IIIIBBHId", 3, len(payload), sequence, 0, kind, flags | (2 if headers else 0), len(headers), 0, 1e12)
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
large = struct.pack("<IIQQQ", 1, 0x101, 7, 0x7F0000001000, 4 << 20) + struct.pack("<dd", 0, 4 << 20)
write("frame", "remote", frame([record(large, flags=8 | 16), record(struct.pack("<d", 7), kind=12)]))
write("frame", "empty-payload", frame([record(b"")]))



def offer(lanes, medium, at=bytes(24), ethernet=0, mtu=1):
    """An offer blob: `at` is where the member is on a network, its LID and its GID."""
    return struct.pack("<IHHQQIIIIIBBBB", 0x4D4C524F, 1, 80, 5, 0x7F0000001000, 0x101, 1, 17, 16384, 2, lanes, medium,
                       ethernet, mtu) + at[:20] + bytes(12)


def tunnel(kind, lane, last, queue_pair=0, psn=0):
    return struct.pack("<IBBHQQQQII", 0x4D4C5254, 1, kind, lane, 5, 7, 1, last, queue_pair, psn)


gid = struct.pack("<I", 0) + bytes(10) + bytes([0xFF, 0xFF, 10, 77, 0, 1])
write("offer", "offer", offer(1, 1))
write("offer", "offer-rc", offer(2, 2, gid, 1, 3))
write("offer", "ask", tunnel(1, 0, 0))
write("offer", "state", tunnel(2, 3, 12345))
write("offer", "ask-rc", tunnel(1, 0, 0, 0x123, 0xABCDEF))
write("offer", "state-rc", tunnel(2, 3, 12345, 0x123, 0xABCDEF))


def ethernet(kind, body, tags=b""):
    return bytes([1, 0, 0x5E, 1, 1, 7, 2, 0, 0, 0, 0, 1]) + tags + struct.pack(">H", kind) + body


def ipv4(protocol, body, flags=0):
    return struct.pack(">BBHHHBBHII", 0x45, 0, 20 + len(body), 1, flags, 64, protocol, 0, 0x0A000001, 0xEF010107) + body


def ipv6(following, body):
    return struct.pack(">IHBB", 6 << 28, len(body), following, 64) + b"\xfd" * 32 + body


def udp(port, body):
    return struct.pack(">HHHH", 999, port, 8 + len(body), 0) + body


tcp = struct.pack(">HHIIBBHHH", 1, 2, 3, 4, 0x50, 0x10, 100, 0, 0) + b"data"
plain = ethernet(0x0800, ipv4(17, udp(5001, b"payload")))
for name, data in {
    "udp": plain,
    "vlan": ethernet(0x0800, ipv4(6, tcp), b"\x81\x00\x00\x05"),
    "fragment": ethernet(0x0800, ipv4(17, udp(1, b"x"), 0x2000)),
    "extensions": ethernet(0x86DD, ipv6(0, b"\x3c\0" + bytes(6) + b"\x06\0" + bytes(6) + tcp)),
    "vxlan": ethernet(0x0800, ipv4(17, udp(4789, b"\x08\0\0\0\0\0\x07\0" + plain))),
    "gre": ethernet(0x0800, ipv4(47, struct.pack(">HHI", 0x2000, 0x6558, 7) + plain)),
    "esp": ethernet(0x0800, ipv4(50, struct.pack(">II", 1, 2))),
}.items():
    write("packet", name, data)


def spec(kind, body):
    return struct.pack("<IH", kind, 6 + len(body) + (-(6 + len(body)) % 4)) + body + bytes(-(6 + len(body)) % 4)


def flow(specs, kind=0, flags=0):
    body = b"".join(specs)
    return struct.pack("<IIHHBBxxI", 0, kind, 20 + len(body), 1, len(specs), 1, flags) + body


mac = spec(0x20, plain[:6] + bytes(10) + b"\xff" * 6 + bytes(10))
address = spec(0x30, b"\0\0" + struct.pack(">IIII", 0, 0xEF010107, 0, 0xFFFFFFFF))
port = spec(0x41, struct.pack(">HHHH", 5001, 0, 0xFFFF, 0))
write("flow", "group", flow([mac, address, port]))
write("flow", "tag", flow([mac, struct.pack("<IHxxI", 0x1000, 12, 7)]))
write("flow", "drop", flow([port, struct.pack("<IHxx", 0x1001, 8)]))
write("flow", "sniffer", flow([], kind=3))


def rules_and_frame(rules, frame):
    return b"".join(struct.pack("<H", len(rule)) + rule for rule in rules) + b"\0\0" + frame


group = flow([address, port])
write("filter", "group", rules_and_frame([group], plain))
write("filter", "many", rules_and_frame([flow([spec(0x30, b"\0\0" + struct.pack(">IIII", 0, 0x0A000001 + i * 65536, 0, 0xFFFFFFFF)),
                                               spec(0x41, struct.pack(">HHHH", 5001 + 2 * i, 0, 0xFFFF, 0))])
                                         for i in range(200)] + [group], plain))
write("filter", "ports", rules_and_frame([flow([port])], ethernet(0x86DD, ipv6(17, udp(5001, b"six")))))
write("filter", "fragment", rules_and_frame([group], ethernet(0x0800, ipv4(17, udp(5001, b"x"), 0x2000))))
write("filter", "two-tags", rules_and_frame([group], ethernet(0x0800, ipv4(17, udp(5001, b"x")), b"\x81\0\0\7")))


def slot(frame, status=1, tag=0, net=bytes(10), kind=0):
    """A slot of a TPACKET_V2 ring: its header, the address, the header of virtio, the frame."""
    start = 76
    head = struct.pack("<IIIHHIIHHxxxx", status, len(frame), len(frame), start, start + 14, 1, 2, tag, 0x88A8)
    address = struct.pack("<HHiHBB8s", 17, 8, 3, 1, kind, 6, bytes(8))
    return (head + address).ljust(start - len(net), b"\0") + net + frame


gso = struct.pack("<BBHHHH", 1, 5, 42, 100, 34, 6)
big = ethernet(0x0800, ipv4(17, udp(5001, bytes(range(256)) * 4)))
write("ring_frame", "plain", slot(plain))
write("ring_frame", "tagged", slot(plain, status=1 | 1 << 4, tag=0x6007))
write("ring_frame", "service-tag", slot(plain, status=1 | 1 << 4 | 1 << 6, tag=5))
write("ring_frame", "fragment", slot(ethernet(0x0800, ipv4(17, udp(1, b"x"), 0x2000)), status=1 | 1 << 4, tag=7))
write("ring_frame", "segments", slot(big, net=gso))
write("ring_frame", "segments-six", slot(ethernet(0x86DD, ipv6(17, udp(5001, bytes(1000)))), net=gso, status=0x11))
write("ring_frame", "outgoing", slot(plain, kind=4))


def message(address, controls, payload=b"payload"):
    """What recvmsg() says: the sender's address, the control messages with their lengths, the payload."""
    packed = b""
    for level, kind, body in controls:
        one = struct.pack("<QII", 16 + len(body), level, kind) + body
        packed += one + bytes(-len(one) % 8)
    return bytes([len(packed)]) + address.ljust(28, b"\0") + packed + payload


four = struct.pack("<H", 2) + struct.pack(">HI", 4000, 0x0A090002)
six = struct.pack("<H", 3) + struct.pack(">HI", 4000, 0) + bytes([0xFD] + [9] * 14 + [2])
mapped = struct.pack("<H", 3) + struct.pack(">HI", 4000, 0) + bytes(10) + b"\xff\xff" + bytes([10, 9, 0, 2])
info4 = struct.pack("<I", 2) + bytes([10, 9, 0, 1]) + bytes([239, 1, 1, 7])
info6 = bytes([0xFF, 2] + [0] * 13 + [1]) + struct.pack("<I", 2)
write("udp_message", "four", message(four, [(0, 8, info4)]))
write("udp_message", "six", message(six, [(41, 50, info6)]))
write("udp_message", "mapped", message(mapped, [(41, 50, bytes(10) + b"\xff\xff" + bytes([10, 9, 0, 1]) + bytes(4))]))
write("udp_message", "others", message(four, [(1, 29, bytes(16)), (0, 8, info4), (0, 2, bytes(4))], b""))
write("udp_message", "short", message(four, [(0, 8, info4[:5])]))
