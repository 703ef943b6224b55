#!/usr/bin/env python3
"""Completes a task together with its effect, from outside Rust.

It needs Python 3.8 and the program psql, and no driver. With a driver it is the same SQL in one transaction.

    RUN='{"task": "2085-1", "epoch": 3, "attempt": 1, "boot": 7}' CENTS=500 DATABASE_URL=postgres://... python3 complete.py

The table, and the rights of the role that this runs as:

    create table charge (task text not null, cents bigint not null);
    grant insert on charge to worker;
    grant usage on schema ringmesh to worker;
    grant execute on function ringmesh.complete to worker;
"""

import json
import os
import subprocess
import sys

# psql quotes :'x' as a text; the others are numbers, which int() has made sure of.
SQL = """
begin;
set local idle_in_transaction_session_timeout = '5s';
insert into charge (task, cents) values (:'task', :cents);
select ringmesh.complete(:'task', :epoch, :attempt, jsonb_build_object('charged', :cents), boot => :boot);
commit;
"""

# What these mean: see docs/exactly-once.md.
STALE, ENDED, AGAIN = "RM001", "RM002", "RM003"


def complete(url, run, cents):
    """True: charged, and the task has ended. False: this run has no say any more, and nothing was written."""
    values = {"task": run["task"], "epoch": int(run["epoch"]), "attempt": int(run["attempt"]), "boot": int(run["boot"]), "cents": int(cents)}
    for _ in range(3):
        # ON_ERROR_STOP: psql would go on to COMMIT, be answered with a rollback, and exit well. VERBOSITY: shows the code.
        options = ["--no-psqlrc", "--quiet", "--tuples-only", "--set=ON_ERROR_STOP=1", "--set=VERBOSITY=verbose"]
        options += [f"--set={name}={value}" for name, value in values.items()]
        done = subprocess.run(["psql", *options, url], input=SQL, text=True, capture_output=True)
        if done.returncode == 0:
            return True
        if STALE in done.stderr or ENDED in done.stderr:
            return False
        if AGAIN not in done.stderr:
            break
    # Perhaps the answer to COMMIT was lost. Whether it is charged, the task tells: if it has ended, it is.
    raise RuntimeError(done.stderr)


if __name__ == "__main__":
    charged = complete(os.environ["DATABASE_URL"], json.loads(os.environ["RUN"]), os.environ["CENTS"])
    print("charged" if charged else "not this run's to charge")
    sys.exit(0 if charged else 3)
