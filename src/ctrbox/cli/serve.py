"""Defines ``ctrbox serve``, which serves predictions of a model folder or a run folder over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ctrbox.cli.job_file import Job
from ctrbox.cli.open_runs import AllowViews, OtherViews, OwnJob, asking_for_the_job, operators_in, own_job, plan_of
from ctrbox.cli.options import AllowOperators, Servers, in_words_of_options, pairs_of, vector_files
from ctrbox.cli.terminal import Mistake, hint, say_json, tell
from ctrbox.files.urls import url_of

MOST_BODY = 256 << 20  # what all bodies together may take
MOST_CACHE = MOST_TABLE_MEMORY = 1 << 50

EXAMPLES = """\b
Examples:
  ctrbox serve model/                              listen at http://127.0.0.1:8000; a page for browsers is at /
  ctrbox serve model/ --grpc-port 8001             listen for gRPC requests too, such as those of tritonclient
  ctrbox serve model/ --host 0.0.0.0 --token-file token.txt
  ctrbox serve runs/today --view users=data/users  serve a run folder; read the view users from data/users
  ctrbox serve runs/own --job own.py               serve a run whose model class is defined in own.py
  ctrbox serve model/ --prerank ads.prerank --prerank-run runs/towers     select among many ads with another run's vectors
  ctrbox serve s3://bucket/model --public-key model.key.pub         accept only versions that the owner of that key signed
"""


def serve(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder of a published model, or a run folder: a local path, s3://bucket/folder or hdfs://host/folder; a "
            "published model may also be at https://host/folder.",
        ),
    ],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Network address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", min=1, max=65_535, help="Port of the HTTP server.")] = 8000,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=1,
            max=65_535,
            help="Port of the gRPC server. Default: no gRPC server.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the token that clients must send with each request. Default: the environment variable "
            "CTRBOX_TOKEN. A token is required if --host is not a loopback address.",
        ),
    ] = None,
    name: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Name of the model in the URLs of the v2 protocol (the Open Inference Protocol). Default: the name of the "
            "folder MODEL.",
        ),
    ] = "",
    max_candidates: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="N", help="Maximum number of candidates in one request.")
    ] = 1000,
    max_body: Annotated[
        str,
        typer.Option(
            metavar="SIZE", help="Maximum size of a request body, up to 256MB. Units are powers of 1024: 1MB is 1024KB."
        ),
    ] = "1MB",
    queue: Annotated[
        int,
        typer.Option(
            min=0,
            max=1_000_000,
            metavar="N",
            help="Maximum number of requests that wait in one worker to be scored; further requests get status 503.",
        ),
    ] = 64,
    deadline_ms: Annotated[
        int,
        typer.Option(
            min=1,
            max=600_000,
            metavar="MS",
            help="Maximum time in milliseconds that a request may wait before it gets status 503.",
        ),
    ] = 200,
    body_timeout: Annotated[
        float,
        typer.Option(
            min=0.1, max=600, metavar="SECONDS", help="Maximum time in seconds for a complete request to arrive."
        ),
    ] = 10.0,
    max_connections: Annotated[
        int,
        typer.Option(
            min=16,
            max=1_000_000,
            metavar="N",
            help="Maximum number of open connections to all workers together, HTTP and gRPC. The server allows fewer if the "
            "open-file limit of its processes is too low.",
        ),
    ] = 8192,
    client_share: Annotated[
        int,
        typer.Option(
            min=1,
            max=100,
            metavar="PERCENT",
            help="Percentage that one client address may use at most of each of these: the connections, the memory for "
            "requests, and the queue. Set it to 100 if all requests come through one proxy.",
        ),
    ] = 50,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="PEM file with the certificate chain; enables TLS 1.2 or newer for HTTP and gRPC. The server reloads the "
            "file when it changes. Default: no TLS.",
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="PEM file with the unencrypted private key. Default: the key is read from the --tls-cert file.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Additional host name that a server without a token accepts in the Host and Origin headers, besides "
            "loopback names and --host; may be repeated. Default: none.",
        ),
    ] = None,
    prerank: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder with the vectors of all ads, written by `ctrbox vectors prerank`. The server then also answers "
            "/v1/prerank and /v1/cascade. Default: no pre-rank.",
        ),
    ] = None,
    prerank_run: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Run folder of the TwoTower model that computes the user's vector. Default: MODEL, if MODEL is the run "
            "folder of a TwoTower model.",
        ),
    ] = None,
    prerank_view: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="Path from which the server reads the view NAME of the run that --prerank-run names; may be "
            "repeated. Default: the path that is saved in this run.",
        ),
    ] = None,
    max_prerank: Annotated[
        int,
        typer.Option(
            min=1,
            max=1_000_000,
            metavar="N",
            help="Maximum number of candidates in one request to /v1/prerank or /v1/cascade.",
        ),
    ] = 100_000,
    cache: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Memory for the cached contexts of all workers together, such as 256MB (units are powers of 1024); 0 "
            "disables the cache.",
        ),
    ] = "256MB",
    table_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory for the rows of all Sparse Tables of a run folder, such as 512MB (units are powers of 1024). Other "
            "rows stay on disk and are read when a request needs them. Default: 2GB for each table.",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with a state of the plan's histories, saved by `plan.histories()`. The server then computes the "
            "history columns itself, accepts events at /v1/events, and saves the state to the file. Default: requests "
            "must contain the history columns.",
        ),
    ] = None,
    events: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Stream from which the server reads events for the histories of --state, such as "
            "nats://host:4222/CLICKS?subject=ads.clicks. A message looks like the body of a request to "
            "/v1/events. Every worker reads the whole stream. Default: no "
            "stream; clients send the events to /v1/events.",
        ),
    ] = "",
    follow_state: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with a state of the plan's histories that another process writes: `ctrbox online --state-every`. "
            "Every worker reads the file again whenever it changes, and the server accepts no events at /v1/events. "
            "Default: none.",
        ),
    ] = None,
    state_every: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=86_400,
            metavar="SECONDS",
            help="Time in seconds between two saves of the --state file. The server also saves the file when it stops.",
        ),
    ] = 30.0,
    views_every: Annotated[
        float,
        typer.Option(
            min=0,
            max=86_400,
            metavar="SECONDS",
            help="Time in seconds between two checks of the files of joined views. If the files of a view have changed, "
            "the server reads the view again while requests still use the old rows. With 0, the server reads views "
            "again only if a client calls /v1/views/refresh.",
        ),
    ] = 0.0,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            metavar="N",
            help="Number of worker processes. The workers share the port and the memory of the model, and divide "
            "--max-connections and --cache among them. The server replaces a worker that dies. Default: the number of "
            "usable cores. The default is 1 in three cases: MODEL is a run that was published with `ctrbox publish create "
            "--model RUN`; MODEL is a run folder with a Sparse Table; or --state is given without --events.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=256,
            metavar="N",
            help="Number of threads in each worker that score requests. With 0, the thread that handles the connections "
            "also scores the requests. Default: 1 if MODEL is a run folder, or if --prerank or --encoder is given; "
            "otherwise 0.",
        ),
    ] = None,
    public_key: Annotated[
        list[Path] | None,
        typer.Option(
            "--public-key",
            metavar="FILE",
            help="Public key file of the model's publisher, from `ctrbox publish keygen`. The server then accepts only "
            "versions that were signed with the matching private key. May be repeated, for the time in which the "
            "publisher changes from one key to another. Default: signatures are not checked.",
        ),
    ] = None,
    model_id: Annotated[
        str,
        typer.Option(
            metavar="ID",
            help="Identity that a signed model must have: the 32 hexadecimal digits that `ctrbox publish log` prints. "
            "Default: the identity of the first version that the server reads.",
        ),
    ] = "",
    trust_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File in which the server stores the number of the newest signed version that it has accepted. With this "
            "file, the server refuses an older version even after a restart. Default: no file; a restarted server "
            "accepts any signed version.",
        ),
    ] = None,
    encoder: Annotated[
        list[str] | None,
        typer.Option(
            "--encoder",
            metavar="FIELD=WEIGHTS",
            help="Let requests contain images or texts for the field FIELD of the model. WEIGHTS is the weight file of the "
            "encoder that computed the vectors of this field. May be repeated. The server compares the "
            "weights with the checksum that the model contains. To use an encoder of your own, define it in the file of "
            "--job instead: `encoders = {FIELD: "
            "cb.tables.Encoder(…)}`. Default: requests may not contain images or texts.",
        ),
    ] = None,
    max_images: Annotated[
        int,
        typer.Option(
            min=1,
            max=64,
            metavar="N",
            help="Maximum number of images and texts in one request that the server encodes.",
        ),
    ] = 8,
    max_pixels: Annotated[
        int,
        typer.Option(
            min=1,
            max=1 << 31,
            metavar="N",
            help="Maximum number of pixels of an image in a request. The server checks this before it decodes the image.",
        ),
    ] = 16_000_000,
    traces: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="URL of an OTLP/HTTP collector to which the server sends OpenTelemetry spans of requests, such as "
            "http://127.0.0.1:4318/v1/traces. With the value 'console', the server prints the spans to stderr. Needs "
            "`pip install 'ctrbox[traces]'`. Default: no spans.",
        ),
    ] = "",
    access_log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File to which the server appends one line of JSON for each answer. Default: no access log.",
        ),
    ] = None,
    view: OtherViews = None,
    allow_views: AllowViews = None,
    job: OwnJob = None,
    servers: Servers = None,
    allow_operators: AllowOperators = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object to stdout when the server is ready.")
    ] = False,
) -> None:
    """Serve a model over HTTP and gRPC.

    A request contains one context, such as the user and the page, and many candidates, the ads that could be shown.
    The answer contains the click probability of each candidate.
    """
    import logging

    from ctrbox.arguments.sizes import bytes_within

    try:
        from ctrbox.serve.server import Server, Settings, bracketed, missing_library, read_token
        from ctrbox.serve.service import Limits
    except ImportError as error:
        raise Mistake(f"serving needs {error.name}, which is not installed: pip install 'ctrbox[serve]'") from None

    logging.basicConfig(level=logging.INFO, format="ctrbox: %(message)s")
    if url_of(model) is None and (other := no_folder(Path(model))):
        raise Mistake(other)
    own = own_job(job)
    limits = Limits(
        body_bytes=bytes_within("--max-body", max_body, 1, MOST_BODY),
        candidates=max_candidates,
        waiting=queue,
        deadline_ms=deadline_ms,
        body_seconds=body_timeout,
        connections=max_connections,
        client_share=client_share / 100,
        images=max_images,
        pixels=max_pixels,
        cache_bytes=bytes_within("--cache", cache, 0, MOST_CACHE),
    )
    settings = Settings(
        host=host,
        port=port,
        grpc_port=grpc_port or 0,
        token=read_token(token_file),
        name=name,
        workers=workers,
        threads=threads,
        limits=limits,
        views=(views := pairs_of("--view", view, "users=tomorrow/users")),
        servers=vector_files(servers),
        table_memory=None
        if table_memory is None
        else bytes_within("--table-memory", table_memory, 1, MOST_TABLE_MEMORY),
        allow_operators=allow_operators or operators_in(own),
        allow_views=allow_views or (),
        encoders=encoders_of(own, pairs_of("--encoder", encoder, "ad_image=vgg16.safetensors")),
        own_plan=plan_of(own, views),
        own_model=None if own is None else own.model,
        tls_cert=tls_cert,
        tls_key=tls_key,
        allow_hosts=tuple(allow_host or ()),
        public_keys=tuple(public_key or ()),
        model_id=model_id,
        trust_file=trust_file,
        views_seconds=views_every,
        prerank=prerank,
        prerank_run=prerank_run,
        prerank_views=pairs_of("--prerank-view", prerank_view, "users=tomorrow/users"),
        prerank_candidates=max_prerank,
        state=state,
        state_seconds=state_every,
        events=events,
        follow_state=follow_state,
        traces=traces,
        access_log=access_log,
    )
    try:
        with in_words_of_options(ram="--table-memory", table_memory="--table-memory"), asking_for_the_job(own):
            server = Server.open(model, settings)
        url = f"{'https' if tls_cert else 'http'}://{bracketed(host)}:{port}"

        def ready() -> None:
            served = server.service.served
            facts: dict[str, Any] = {
                "model": server.service.name,
                "kind": served.kind,
                "version": served.version,
                "url": url,
                "workers": server.workers,
            }
            if as_json:
                say_json(**facts, grpc=grpc_port)
            grpc = f", gRPC at {bracketed(host)}:{grpc_port}" if grpc_port else ""
            several = f" with {server.workers} workers" if server.workers > 1 else ""
            tell(f"serving {model} version {served.version} at {url}{grpc}{several}; press Ctrl-C to stop")
            hint(f"curl {url}/openapi.json    or open {url}/ in a browser")

        server.run(ready)
    except ImportError as error:
        raise missing_library(error) from None
    tell("stopped; all requests that had been received were answered")


def encoders_of(own: Job | None, weights: Mapping[str, str]) -> dict[str, Any]:
    """Return the encoders of the job and those that are given by their weights, by field."""
    found: dict[str, Any] = {} if own is None else dict(own.encoders)
    for name, path in weights.items():
        if name in found:
            raise Mistake(
                f"--encoder {name}={path}: the job also defines an encoder for field {name!r}; remove one of the two"
            )
        found[name] = path
    return found


def no_folder(model: Path) -> str:
    """Return what to do about a path that is not a model folder; "" if it may be one."""
    if model.is_file():
        return (
            f"{model} is a file; expected a model folder, which holds a plan and weights. To create one: "
            f"ctrbox publish create {model.stem} --model {model} --job JOB.PY --context COLUMN,…"
        )
    if (model / "CURRENT").is_file() and not (model / "serve.json").exists():
        if (model.parent / "serve.json").exists():
            return f"{model} holds only the versions of a model; pass the model folder above it: ctrbox serve {model.parent}"
        return (
            f"{model} holds published versions but no plan, and a server needs both. To create a model folder with both: "
            f"ctrbox publish create NEW --model {model} --job JOB.PY --context COLUMN,…"
        )
    return ""
