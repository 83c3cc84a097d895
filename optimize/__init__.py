"""Compiling, measuring and versioning the program."""

import os

for _name, _value in {
    "LITELLM_LOCAL_MODEL_COST_MAP": "true",  # no fetch at the first LM call
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "TQDM_DISABLE": "1",  # one progress bar is enough
}.items():
    os.environ.setdefault(_name, _value)
