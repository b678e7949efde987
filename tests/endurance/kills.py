"""Attacks by SIGKILL on a run of one process, and by a second process. Each returns "", "lost: …" or "wrong: …"."""

from __future__ import annotations

import time

from tests.endurance.attacked import (
    COMMON,
    EACH_STEP,
    N_STEPS,
    Ground,
    compared,
    continued,
    differ,
    finish,
    kill,
    run_to_end,
    start,
    train_command,
    wait_for_step,
)
from tests.endurance.intercepted import die_at

__all__ = [
    "at_a_point_of_a_write",
    "two_processes",
    "while_comparing",
    "while_made",
    "while_resuming",
    "while_training",
]


def while_training(ground: Ground) -> str:
    """A kill at a random moment."""
    method, folder = ground.method(), ground.folder()
    process, _ = start(train_command(method, folder, *EACH_STEP))
    if not wait_for_step(process, folder, ground.generator.randrange(1, N_STEPS)):
        return while_training(ground)  # it was faster than the attack
    time.sleep(ground.generator.random() / 100)
    kill(process)
    return continued(ground, method, folder)


def while_resuming(ground: Ground) -> str:
    """Two kills of resumes, at random moments."""
    method = ground.method()
    folder = ground.stopped(method)
    for step in sorted(ground.generator.sample(range(9, N_STEPS), 2)):
        process, _ = start(["train", "--resume", str(folder), "--quiet", *EACH_STEP])
        if not wait_for_step(process, folder, step):
            return while_resuming(ground)  # it was faster than the attack
        kill(process)
    return continued(ground, method, folder)


def while_comparing(ground: Ground) -> str:
    """A kill of a comparison of two methods; the same command is given again."""
    folder = ground.folder()
    shared = [flag for flag in COMMON if not flag.startswith("--device")]
    given = ["compare", "sgd,vi", "--data=digits", *shared, "--device=cpu", "--seeds=1", f"--out={folder}"]
    process, _ = start(given)
    method = ground.generator.choice(("sgd", "vi"))
    until = time.monotonic() + 120
    while not (folder / f"{method}-0" / ".lock").exists() and time.monotonic() < until:
        time.sleep(0.002)
    time.sleep(ground.generator.random())
    kill(process)
    ended = run_to_end(given)
    if ended.code:
        return f"lost: {ended.said}"
    found = [differ(folder / f"{one}-0", ground.whole(one)) for one in ("sgd", "vi")]
    return f"wrong: {found}" if any(found) else ""


def at_a_point_of_a_write(ground: Ground) -> str:
    """A kill at one of all calls that open, write, wait for or rename a file."""
    folder = ground.folder()
    number = ground.generator.randrange(1, len(ground.calls) + 1)
    run_to_end(train_command("ssvi", folder, *EACH_STEP), die_at(number))
    return continued(ground, "ssvi", folder)


def while_made(ground: Ground) -> str:
    """A kill at one of the calls before the first checkpoint; what is refused then names the command that is not."""
    folder = ground.folder()
    n_calls = next(number for number, call in enumerate(ground.calls) if "checkpoint" in call)
    run_to_end(train_command("ssvi", folder), die_at(ground.generator.randrange(1, n_calls + 1)))
    ways = [train_command("ssvi", folder), ["train", "--resume", str(folder), "--quiet"]]
    ground.generator.shuffle(ways)
    ended = run_to_end(ways[0])
    if ended.code:
        meant = "--resume" if "--resume" in ways[1] else "check the path" if not folder.exists() else "began it again"
        if not ended.in_one_line or meant not in ended.said:
            return f"lost: exit code {ended.code}: {ended.said}"
        ended = run_to_end(ways[1])
    if ended.code or ended.said:
        return f"lost: exit code {ended.code}: {ended.said}"
    return compared(folder, ground.whole("ssvi"))


def two_processes(ground: Ground) -> str:
    """Two trainings are started in one folder at once; one trains, the other says so and ends."""
    folder = ground.folder()
    both = [start(train_command("ssvi", folder)) for _ in range(2)]
    ended = [finish(*one) for one in both]
    if sorted(one.code for one in ended) != [0, 1]:
        return f"wrong: exit codes {[one.code for one in ended]}"
    return compared(folder, ground.whole("ssvi"))
