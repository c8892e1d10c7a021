"""The Triton kernels in Triton's interpreter, in a process of their own: see interpreted/conftest.py."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_kernels_in_the_interpreter() -> None:
    files = sorted(str(file) for file in HERE.glob("interpreted/test_*.py"))
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=HERE.parents[1],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout[-8000:] + answer.stderr[-2000:]
