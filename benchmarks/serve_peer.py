"""The same model the usual way: FastAPI under uvicorn, rows of a request joined and scored in one batch. For benchmarks/serve.py.

python -m benchmarks.serve_peer MODEL/ PORT
"""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import pyarrow as pa
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from ctrbox.serve.model_folder import ModelFolder


class Asked(BaseModel):
    context: dict[str, Any]
    candidates: list[dict[str, Any]]


def application(folder: str) -> FastAPI:
    found = ModelFolder.open(folder)
    plan, engine, app = found.plan(), found.engine(), FastAPI()
    schema = plan.log.source.schema

    @app.post("/v1/score")
    def score(asked: Asked) -> dict[str, Any]:
        context = {**asked.context, "ts": datetime.fromisoformat(asked.context["ts"])}
        rows = [{**context, **candidate} for candidate in asked.candidates]
        names = list(rows[0])
        table = pa.table({n: pa.array([row[n] for row in rows], schema.field(n).type) for n in names})
        return {"scores": engine.predict(plan.run(table)).tolist()}

    return app


if __name__ == "__main__":
    uvicorn.run(application(sys.argv[1]), port=int(sys.argv[2]), log_level="error", access_log=False)
