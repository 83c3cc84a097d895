"""The served model as a Spark function: a thousand rows, three of them bad. Spark itself needs Java 17 or newer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import mlflow
import pytest
from fake_lm import fake_lm_server
from served_model import MONTHS, QUESTIONS, Home, make_home, save


def java() -> int:
    """Return the major version of the Java that Spark would start, 0 where there is none: the one thing that pip cannot install."""
    home = os.environ.get("JAVA_HOME")
    command = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    said = subprocess.run([command, "-version"], capture_output=True, text=True).stderr if command else ""
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0


pytestmark = pytest.mark.skipif(java() < 17, reason="Spark needs Java 17 or newer")

ROWS, BAD = 1000, {7: "", 500: None, 999: "x" * 5000}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with fake_lm_server() as fake:
        yield make_home(tmp_path_factory.mktemp("spark"), fake)


@pytest.fixture(scope="module")
def spark(home: Home) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        for name, value in home.env(CRAG_TOP_K="2").items():  # the workers' environment is this process's
            patch.setenv(name, value)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.delenv("MLFLOW_TRACKING_URI")
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.warehouse.dir", str(home.folder / "warehouse"))
            # 1,000 rows in two partitions and batches of 499 leave a batch of one row, which no status may end.
            .config("spark.sql.execution.arrow.maxRecordsPerBatch", "499")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()


def test_a_thousand_rows_come_back_in_order_and_the_bad_ones_as_items(home: Home, spark: Any) -> None:
    from pyspark.sql import functions as F

    rows = [(i, BAD.get(i, QUESTIONS[i % len(QUESTIONS)]), "2026-03-02", 0.0) for i in range(ROWS)]
    frame = spark.createDataFrame(rows, "n long, question string, as_of string, max_lm_calls double").repartition(2)
    ask = mlflow.pyfunc.spark_udf(spark, str(save(home)), env_manager="local")
    answered = frame.select("n", "question", ask(F.struct("question", "as_of", "max_lm_calls")).alias("a")).orderBy("n").collect()
    assert [row.n for row in answered] == list(range(ROWS))
    for row in answered:
        if row.n in BAD:
            assert row.a.status == "error" and row.a.error.code in ("invalid_request", "question"), row
        else:
            months = MONTHS[row.n % len(QUESTIONS)]
            assert row.a.status == "answered" and f"{months} months" in row.a.text and row.a.question == row.question
            assert row.a.error.code is None and row.a.citations[0].quote and row.a.usage.lm_calls == 0
