"""Serves predictions: model folders, requests, the context cache, HTTP and gRPC, hot reload, and a status page."""

from ctrbox.serve.model_folder import ModelFolder, create

__all__ = ["ModelFolder", "create"]
