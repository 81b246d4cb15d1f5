# SPDX-License-Identifier: Apache-2.0
"""The Python half of bench/streams.py: SIZE bytes out of, or into, a process, as a program with the SDK sees them.

    stream.py HOST SANDBOX out|in SIZE      exit code 0 when all of them went through
"""
import sys

from cay import Cay

PIECE = bytes(1 << 18)


def out(box, size):
    process = box.start(["head", "-c", str(size), "/dev/zero"])
    return sum(len(piece.data) for piece in process.output())


def into(box, size):
    process = box.start("wc -c", stdin=True)
    for at in range(0, size, len(PIECE)):
        process.write(PIECE[: min(len(PIECE), size - at)])
    process.close_stdin()
    return int(b"".join(piece.data for piece in process.output()))


def main():
    host, name, way, size = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    with Cay(host) as cay:
        done = {"out": out, "in": into}[way](cay.get(name), size)
    sys.exit(0 if done == size else f"{done} of {size} bytes")


main()
