"""Requests in, scores out: a model's folder, its requests, the context cache, HTTP and gRPC, hot reload, the page."""

from ctrbox.serve.model_folder import ModelFolder, create

__all__ = ["ModelFolder", "create"]
