"""A million waiting items: the scan begins after one pass over the names, oldest first, within 50 MB.

By default the names come from a stand-in for the directory, as a million files take a minute to make; PENSTOCK_LONG=1
makes them. The memory is that of the whole process: interpreter, modules and all. Names are alike, as one program makes
them; or random, as with an id for an argument; or random and long.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fsq import programs

ITEMS = 1_000_000
MEGABYTES_MAX = 50

PROGRAM = """
import os, random, sys
from penstock import fsq
from penstock.fsq import snapshot

passes = 0
real = os.scandir

class Entry:
    __slots__ = ("name",)

chance = random.Random(9)
ARGUMENTS = {
    "alike": lambda at: f"argument-{at}",
    "random": lambda at: f"{chance.getrandbits(128):032x}",
    "long": lambda at: f"{chance.getrandbits(640):0160x}",
}

class Names:
    # In no order, as a directory gives them: 7919 and a million have no common factor.
    def __enter__(self):
        return self
    def __exit__(self, *error):
        pass
    def __iter__(self):
        entry = Entry()
        argument = ARGUMENTS[sys.argv[2]]
        for number in range(1_000_000):
            at = number * 7919 % 1_000_000
            entry.name = f"_202611151842{at % 60:02d}_{at // 60}_{at % 977}_some-host_0_{argument(at)}"
            yield entry

def counted(path):
    global passes
    passes += 1
    return Names() if sys.argv[1] == "stand-in" else real(path)

os.scandir = counted
items = fsq.scanning.item_ids("mail")
first = [next(items) for _ in range(1000)]
assert passes == 1, passes
keys = [(name.split("_")[1], int(name.split("_")[2])) for name in first]
assert keys == sorted(keys)
count = len(first)
last = keys[-1]
for name in items:
    fields = name.split("_", 3)
    key = fields[1], int(fields[2])
    assert last <= key
    last = key
    count += 1
assert count == 1_000_000, count
# What getrusage gives would be the parent's, if that was larger before the exec.
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(peak) // 1024)
"""


def megabytes(*words: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], env=programs.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="the memory is read from /proc")
@pytest.mark.parametrize("names", ["alike", "random", "long"])
def test_a_million_names_take_little_memory(
    root: Path, queue: str, record_property: Callable[[str, object], None], names: str
) -> None:
    used = megabytes("stand-in", names)
    record_property("megabytes", used)
    assert used <= MEGABYTES_MAX


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.environ.get("PENSTOCK_LONG") != "1", reason="a million files take a minute to make")
def test_a_million_files_take_little_memory(root: Path, queue: str) -> None:
    directory = f"{root}/mail/queue"
    for at in range(ITEMS):
        name = f"{directory}/_202611151842{at % 60:02d}_{at // 60}_{at % 977}_some-host_0_argument-{at}"
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o640))
    assert megabytes("files", "") <= MEGABYTES_MAX
