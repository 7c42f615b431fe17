#!/usr/bin/env python3
"""Measures one run of `windfall demo` under limits, and prints it as JSON: the figures that tests/reproduces.rs compares the
simulation with.

    measure.py WINDFALL DIRECTORY NAME REWARDS SECONDS [KEY=RATE,BURST[,PRIORITY] ...]

KEY is `global` or a bonus type. The demo is started, killed as soon as it has written its rules, and resumed once
`windfall rules set` has put the limits in force; so they hold for the whole run. When each order was credited is read from
the ledger afterwards, which no part of the demo reports. When it was sent is its number divided by the rate of sending;
the demo numbers its rewards in the order in which it sends them.
"""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time


def main():
    windfall, data, name, rewards, seconds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    limits = [limit.split("=") for limit in sys.argv[6:]]
    shutil.rmtree(data, ignore_errors=True)
    demo = [windfall, "demo", "--calm", "--rewards", str(rewards), "--seconds-of-rain", str(seconds), "--data", data]
    rules = os.path.join(data, "rules", "rules.toml")
    process = subprocess.Popen(demo, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not os.path.exists(rules):
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    text = open(rules).read()
    for key, limit in limits:
        text = limited(text, key, limit)
    changed = data + ".toml"
    open(changed, "w").write(text)
    subprocess.run([windfall, "rules", "set", changed, "--file", rules, "--who", "measure.py", "--why", name], check=True, stdout=subprocess.DEVNULL)
    load = os.getloadavg()[0]
    resumed = [windfall, "demo", "--resume", "--data", data, "--json"]
    report = json.loads(subprocess.run(resumed, check=True, capture_output=True).stdout)
    print(json.dumps({
        "name": name,
        "limits": dict(limits),
        "load_before": round(load, 1),
        "rewards": rewards,
        "rain_s": round(report["rain"]["rain_s"], 3),
        "first_send_to_last_credit_s": round(report["rain"]["first_send_to_last_credit_s"], 3),
        "requeued_events": report["rain"]["requeued_events"],
        "inherited_events": report["rain"]["inherited_events"],
        "types": by_type(data, rewards, report["rain"]["rain_s"]),
    }, indent=1))
    shutil.rmtree(data)


def limited(text, key, limit):
    rate, burst, *priority = limit.split(",")
    head = "[limits.global]" if key == "global" else f"[limits.types.{key}]"
    body = f"{head}\nrate_per_s = {rate}\nburst = {burst}\n"
    if key != "global":
        body += f"priority = {priority[0] if priority else 1}\n"
    if head in text:
        return re.sub(re.escape(head) + r"\n(?:[a-z_]+ = \d+\n)+", body, text)
    return text.replace("[pacing]", body + "\n[pacing]")


def by_type(data, rewards, rain_s):
    ledger = sqlite3.connect(f"file:{data}/ledger.db?mode=ro", uri=True)
    rows = ledger.execute(
        "select names.name, transfers.reference, transfers.time_ms from transfers join names on names.id = transfers.asset "
        "where (transfers.kind = 0 and transfers.debit = 2) or transfers.kind = 2"
    ).fetchall()
    credits = {}
    for bonus_type, reference, time_ms in rows:
        parts = reference.split("/")
        number = int(parts[2]) * 4096 + int(parts[-1])
        credits.setdefault(bonus_type, []).append((number * rain_s / rewards, time_ms / 1000))
    # The first send is as long before the first credit as the quickest order took.
    start = min(at - sent for orders in credits.values() for sent, at in orders)
    types = {}
    for bonus_type, orders in sorted(credits.items()):
        ages = sorted(at - start - sent for sent, at in orders)
        last = max(at - start for _, at in orders)
        sent = sorted(sent for sent, _ in orders)
        done = sorted(at - start for _, at in orders)
        types[bonus_type] = {
            "orders": len(orders),
            "last_credit_s": round(last, 3),
            "age_p50_s": round(ages[len(ages) // 2], 3),
            "age_p99_s": round(ages[len(ages) * 99 // 100], 3),
            "backlog_each_s": [before(sent, at) - before(done, at) for at in range(1, int(last) + 1)],
        }
    return types


def before(times, at):
    return sum(time <= at for time in times)


main()
