"""What a cluster refuses: budgets, others than itself, strangers, and what it cannot do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ctrbox as cb
from ctrbox.errors import BudgetError, PlanError
from tests.cluster.trainings import OPTIONS, cluster, model, table

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("running")]


@pytest.mark.exhaustive  # that servers count their bytes is tested in test_in_process.py
def test_a_table_that_outgrows_its_servers_is_refused_with_the_budget(plan: cb.Plan) -> None:
    with pytest.raises(BudgetError, match="within its budget of 2,500 bytes"):
        cb.Trainer(model(plan), table(budget=5000)).fit(plan, **OPTIONS, cluster=cluster(1, 2))


@pytest.mark.exhaustive  # test_cluster_settings.py refuses a worker of this process
def test_a_worker_with_other_code_is_refused(plan: cb.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ctrbox.ranks import same_code_data_settings

    theirs = same_code_data_settings.code()
    monkeypatch.setattr(
        same_code_data_settings, "code", lambda: "0123456789abcdef"
    )  # of this process; actors read their own files
    version = cb.__version__
    with pytest.raises(PlanError, match=f"differs in ctrbox: '{version} {theirs}', expected '{version} 0123456789"):
        cb.Trainer(model(plan), table()).fit(plan, **OPTIONS, out=tmp_path / "run", cluster=cluster(1, 1))
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-0000000000"]


JOIN = """
import sys
import ctrbox as cb

try:
    cb.Cluster(sys.argv[1])._join()
    print("joined")
except cb.errors.DeviceError as error:
    sys.exit(str(error))
"""


@pytest.mark.exhaustive  # of Ray itself; half a minute
def test_a_client_without_the_token_is_refused(running: str, tmp_path: Path) -> None:
    """The Ray of these tests runs with RAY_AUTH_MODE=token (conftest.py)."""
    (tmp_path / "token").write_text("0" * 64)
    another = {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    none = {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "nothing")}
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", JOIN, running],
            env={**os.environ, **given},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for given in ({}, another, none)
    ]
    found = [client.communicate(timeout=240) for client in clients]
    assert [client.returncode for client in clients] == [0, 1, 1], found
    assert found[0][0] == "joined\n"
    for (_, told), hint in zip(
        found[1:],
        (
            "check that the cluster runs and that this process has its token",
            "check that the cluster runs. This process has no token; if the cluster requires one, set RAY_AUTH_MODE=token "
            "and RAY_AUTH_TOKEN_PATH",
        ),
        strict=True,
    ):
        assert "Traceback" not in told
        assert f"cannot join the Ray cluster at '{running}'" in told.splitlines()[-1]
        assert hint in told.splitlines()[-1]


def test_what_a_cluster_cannot_do_is_refused_before_anything_is_written(plan: cb.Plan, tmp_path: Path) -> None:
    counted = table(counters=cb.tables.Counters())
    with pytest.raises(PlanError, match="servers=1"):
        cb.Trainer(model(plan), counted).fit(plan, **OPTIONS, out=tmp_path / "run", cluster=cluster(1, 2))
    with pytest.raises(PlanError, match="adaptive_l2"):
        cb.Trainer(model(plan), counted).fit(plan, **OPTIONS, adaptive_l2=0.1, cluster=cluster(1, 1))
    with pytest.raises(PlanError, match="workers must be a whole number"):
        cb.Cluster(workers=0)
    assert not (tmp_path / "run").exists()
