"""Requests in, scores out: a model's folder, requests, the context cache, HTTP and gRPC, hot reload, a page."""

from ctrbox.serve.model_folder import ModelFolder, create

__all__ = ["ModelFolder", "create"]
