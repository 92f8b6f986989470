"""Sends whole Ethernet frames, one line of hex each, out of a network interface; says `done` at the end of input."""
import socket
import sys

out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind((sys.argv[1], 0))
for line in sys.stdin:
    out.send(bytes.fromhex(line.strip()))
print("done")
