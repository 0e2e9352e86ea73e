"""Requests in, scores out: a model's folder, its requests, the context cache, HTTP and gRPC, hot reload, the page."""
