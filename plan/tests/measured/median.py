#!/usr/bin/env python3
"""Prints, of several outputs of measure.py for one run, the one whose last credit is the median.

    median.py FILE FILE FILE
"""

import json
import sys

runs = [json.load(open(path)) for path in sys.argv[1:]]
runs.sort(key=lambda run: run["first_send_to_last_credit_s"])
chosen = runs[len(runs) // 2]
chosen["last_credit_of_all_runs_s"] = [run["first_send_to_last_credit_s"] for run in runs]
text = json.dumps(chosen, indent=1)
print(text)
