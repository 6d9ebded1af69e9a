"""Environment variables of the user's shell that tests keep, and those that they set."""

import re

KEPT = re.compile(
    r"HOME|PATH|USER|LOGNAME|TMPDIR|VIRTUAL_ENV|PYTHONPATH|LD_LIBRARY_PATH|JAVA_HOME|CI"
    r"|\w+_proxy|\w+_CA_BUNDLE|(PIP|PYTEST|SSL_CERT|CUDA|NVIDIA)_\w+",
    re.IGNORECASE,
)
SET = {
    "HF_HUB_OFFLINE": "1",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",  # two test processes share the cores
    "TOKENIZERS_PARALLELISM": "false",
}
