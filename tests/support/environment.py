"""The environment variables of tests: few of the user's shell, so that no test depends on them."""

import os
import re

# Names of variables that tests take over from the user's shell.
INHERITED_NAMES = re.compile(
    r"HOME|PATH|USER|LOGNAME|TMPDIR|VIRTUAL_ENV|PYTHONPATH|LD_LIBRARY_PATH|JAVA_HOME|CI"
    r"|\w+_proxy|\w+_CA_BUNDLE|(PIP|PYTEST|SSL_CERT|CUDA|NVIDIA)_\w+",
    re.IGNORECASE,
)
# Variables that have the same value in every test.
TEST_VARIABLES = {
    "DENSERK_COMPILED_GB": "0",  # no test leaves compiled models in the user's folder
    "HF_HUB_OFFLINE": "1",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",  # two test processes share the cores
    "TOKENIZERS_PARALLELISM": "false",
}
# Set where the variables are those of a test already.
IS_SET_UP = "PYTEST_CLEAN"


def set_up_variables() -> None:
    """Remove all variables but the inherited ones, and set those of tests.

    A pytest that a test starts keeps what the test has set.
    """
    if os.environ.get(IS_SET_UP) != "1":
        for name in list(os.environ):
            if not INHERITED_NAMES.fullmatch(name):
                del os.environ[name]
        os.environ.update(TEST_VARIABLES)
        os.environ[IS_SET_UP] = "1"
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ.pop("COLUMNS", None)  # pytest-xdist tells its workers the terminal's width
