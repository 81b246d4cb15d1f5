# SPDX-License-Identifier: Apache-2.0
"""Runs some code in a sandbox of its own, and tells what came of it. The daemon is $CAY_HOST, or the local one."""
import cay

CODE = """
import csv
rows = list(csv.DictReader(open("/work/people.csv")))
print(sum(int(row["age"]) for row in rows) / len(rows))
"""

with cay.Cay() as client, client.sandbox(memory="256M") as box:
    box.files.write("/work/people.csv", "name,age\nada,36\ngrace,85\n")
    done = box.exec(["python3", "-c", CODE], timeout=10)
    print("exit code:", done.exit_code)
    print("average age:", done.stdout.strip())

    done = box.exec("python3 -c 'while True: pass'", timeout=0.5)
    print("the endless one:", "stopped" if done.timed_out else "?")

    try:
        box.files.read("/work/none.csv")
    except cay.NotFound as error:
        print(error.code)
