# SPDX-License-Identifier: Apache-2.0
"""A process that outlives the program that started it: another client finds it again and reads on where the first
one stopped."""
import cay

with cay.Cay() as first:
    box = first.create(ttl="15m", labels={"example": "background"})
    process = box.start("for i in 1 2 3 4; do echo step $i; sleep 0.1; done; read answer; echo $answer", stdin=True)
    for piece in process.output():
        print("first client:", piece.data.decode().strip())
        break

# All that has to be remembered: which sandbox, which process, how far it was read.
box_id, pid, offset = box.id, process.pid, piece.end

with cay.Cay() as second:
    with second.get(box_id) as box:  # removes it at the end
        process = box.process(pid)
        process.write("thank you\n", eof=True)
        rest = b"".join(piece.data for piece in process.output(since=offset))
        print("second client:", rest.decode().split("\n")[-2])
        print("exit code:", process.wait().exit_code)
