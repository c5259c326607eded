"""Freed memory stays with the process, seen by the pages that the system has to hand out."""

import subprocess
import sys

import pytest

CODE = """
import resource, torch
from kingpost.reference.memory import keep_freed_memory
if {keep}:
    keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**25)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(min(faults() for _ in range(3)))
"""


def faults_of_a_large_tensor(*, keep: bool) -> int:
    command = [sys.executable, "-c", CODE.format(keep=keep)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_a_buffer_that_comes_again_is_not_cleared_by_the_system_again() -> None:
    assert faults_of_a_large_tensor(keep=False) > 100
    assert faults_of_a_large_tensor(keep=True) < 10
