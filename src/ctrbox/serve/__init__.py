"""Serves predictions: model folders, requests, the context cache, HTTP and gRPC, hot reload, and a status page."""

from ctrbox.serve.model_folder import ModelFolder, create
from ctrbox.serve.request_plan import save_request_plan

__all__ = ["ModelFolder", "create", "save_request_plan"]
