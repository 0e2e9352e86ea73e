"""Requests in, scores out: a model's folder, its requests, the context cache, HTTP and gRPC, hot reload, the page, the online loop."""

from ctrbox.serve.model_folder import ModelFolder, create
from ctrbox.serve.online_loop import OnlineLoop

__all__ = ["ModelFolder", "OnlineLoop", "create"]
