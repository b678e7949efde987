"""Runs ``gossamer`` commands, one a line of standard input, each in a process of its own that others may kill.

What takes long, the imports, is done once.
"""

import importlib
import json
import os
import sys


def serve() -> None:
    from gossamer.lab.cli import main

    for name in (
        "gossamer.lab.runs.job",
        "gossamer_sweep.study",
        "optuna.storages",
        "sklearn.datasets",
        "torch._dynamo",
    ):
        importlib.import_module(name)
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            os._exit(main(json.loads(line)))
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
