"""Requests in, scores out: a model's folder, requests, the context cache, HTTP and gRPC, hot reload, a page, the online loop."""

from ctrbox.serve.model_folder import ModelFolder, create
from ctrbox.serve.online_loop import OnlineLoop

__all__ = ["ModelFolder", "OnlineLoop", "create"]
