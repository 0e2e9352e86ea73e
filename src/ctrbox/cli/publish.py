"""Defines ``ctrbox publish``: quantized weight files, patches between them, and folders of published versions."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ctrbox.cli.help_text import Commands
from ctrbox.cli.open_runs import AllowViews, OtherViews, OwnJob, fetched, load_run, reading
from ctrbox.cli.options import AsJson, Servers, SignWith, pairs_of, vector_files
from ctrbox.cli.terminal import Mistake, hint, say, say_json, tell
from ctrbox.files.urls import stored_url, url_of

app = Commands(
    help="Publish the weights of models as versions and small patches.", no_args_is_help=True, rich_markup_mode=None
)

ModelFile = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Model to publish: a saved Deep FFM, a run folder (which may be on s3:// or hdfs://), a *.safetensors file, a "
        "table's Parquet export or a weight file.",
    ),
]
Folder = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER",
        help="Folder of published versions: a local path, s3://bucket/folder or hdfs://host/folder.",
    ),
]
Base = Annotated[Path, typer.Argument(metavar="BASE", help="Older weight file, which the patch changes.")]
WeightOutput = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Weight file to write.")]
PatchOutput = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Patch file to write.")]
PlanOutput = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Plan file to write.")]
TensorOutput = Annotated[
    Path,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="File to write: *.safetensors for tensors, *.parquet for rows of a table.",
    ),
]
PublicKeys = Annotated[
    list[Path] | None,
    typer.Option(
        "--public-key",
        metavar="FILE",
        help="Public key file of the publisher; may be repeated. Default: signatures are not checked.",
    ),
]
Note = Annotated[
    str,
    typer.Option(metavar="TEXT", help="Note about this version, which `ctrbox publish log` shows. Default: no note."),
]


@app.command(epilog="\b\nExamples:\n  ctrbox publish pack model.ffm -o new.fbw --base old.fbw\n")
def pack(
    model: ModelFile,
    output: WeightOutput,
    base: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Reuse the quantization buckets of this weight file where the weights still fit, so that a patch between "
            "the two files is small. Default: new buckets.",
        ),
    ] = None,
    quantize: Annotated[
        bool, typer.Option(help="Quantize float32 weights to 16-bit codes. --no-quantize keeps them as float32.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Write the weights of a model to a weight file.

    The file holds no optimizer state. Float32 weights are quantized to 16-bit codes unless --no-quantize is given.
    """
    from ctrbox import publish

    found = publish.pack(model, output, base=base, quantize=quantize)
    if as_json:
        say_json(kind=found.kind, bytes=found.size, quantized_bytes=found.quantized_bytes, output=str(output))
    tell(f"wrote {found.size:,} bytes of {found.kind} weights to {output}")
    if base is not None and base != output:
        hint(f"ctrbox publish diff {shlex.quote(str(base))} {shlex.quote(str(output))} -o update.patch")
    else:  # a patch leads from one file to another: the next one has the same buckets
        other = output.with_name("new.fbw" if output.name != "new.fbw" else "newer.fbw")
        hint(f"ctrbox publish pack NEWER_MODEL --base {shlex.quote(str(output))} -o {shlex.quote(str(other))}")


@app.command(epilog="\b\nExamples:\n  ctrbox publish unpack new.fbw -o dense.safetensors\n")
def unpack(
    weights: Annotated[Path, typer.Argument(metavar="WEIGHTS", help="Weight file to read.")],
    output: TensorOutput,
) -> None:
    """Convert a weight file to safetensors or Parquet.

    Tensors are written as safetensors, the rows of a table as Parquet.
    """
    from ctrbox import publish

    publish.unpack(weights, output)
    tell(f"wrote {output}")


@app.command(epilog="\b\nExamples:\n  ctrbox publish diff old.fbw new.fbw -o update.patch\n")
def diff(
    base: Base,
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Newer weight file, which the patch produces.")],
    output: PatchOutput,
    as_json: AsJson = False,
) -> None:
    """Write the patch that turns one weight file into another.

    The command also works for two files of any other kind.
    """
    from ctrbox import publish

    began = time.perf_counter()
    facts = publish.diff(base, new, output)
    if as_json:
        say_json(**asdict(facts), seconds=time.perf_counter() - began)
    share = 100 * facts.bytes / max(facts.result_bytes, 1)
    tell(f"wrote {facts.bytes:,} bytes ({share:.2f} % of {new}) to {output}")
    hint(f"ctrbox publish apply {shlex.quote(str(base))} {shlex.quote(str(output))} -o again.fbw")


@app.command(epilog="\b\nExamples:\n  ctrbox publish apply old.fbw update.patch -o new.fbw\n")
def apply(
    base: Base,
    patch: Annotated[Path, typer.Argument(metavar="PATCH", help="Patch file that was made for BASE.")],
    output: WeightOutput,
    most_bytes: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="BYTES",
            help="Maximum size of the result in bytes; a patch with a larger result is refused. Default: twice the size of "
            "BASE, or the size of BASE plus 1 GiB, whichever is larger.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Apply a patch to the weight file that it was made for.

    A patch that was made for another file is refused.
    """
    from ctrbox import publish

    began = time.perf_counter()
    facts = publish.apply(base, patch, output, most_bytes=most_bytes)
    if as_json:
        say_json(**asdict(facts), seconds=time.perf_counter() - began)
    tell(f"wrote {facts.result_bytes:,} bytes to {output}")
    hint(f"ctrbox publish verify {shlex.quote(str(output))}")


@app.command(
    epilog="\b\nExamples:\n"
    "  ctrbox publish create model/ --model model.ffm --job job.py --context user_id,query\n"
    "  ctrbox publish create model/ --job job.py            use `engine` and `context` of the job\n"
    "  ctrbox publish create model/ --model runs/today --context user_id,query\n"
)
def create(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            help="Folder to create for the model: a local path, s3://bucket/folder or hdfs://host/folder.",
        ),
    ],
    job: Annotated[
        Path | None,
        typer.Option(
            metavar="JOB.PY",
            help="Job file: a Python file that defines `plan`. If MODEL is a run folder, the job file is needed only if "
            "the class of the model is your own.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Model to publish: a run folder (which may be on s3:// or hdfs://), a saved Deep FFM or a weight file. "
            "Default: the job's `engine`.",
        ),
    ] = None,
    view: OtherViews = None,
    allow_views: AllowViews = None,
    server: Servers = None,
    context: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="Names of the log columns that a client sends once per request, separated by commas. Default: the job's "
            "`context`; required for a run folder.",
        ),
    ] = None,
    note: Note = "",
    sign_with: Annotated[
        Path | None,
        typer.Option(
            "--sign-with",
            metavar="KEY",
            help="Private key file, made by `ctrbox publish keygen`, with which the command signs version 1. Default: no "
            "signature.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create the folder that `ctrbox serve` opens.

    The folder contains a plan, and version 1 of the weights of a run or of a Deep FFM.
    """
    from ctrbox.cli.job_file import blaming, load_job
    from ctrbox.ffm.engine import DeepFFM
    from ctrbox.publish import Published
    from ctrbox.serve.model_folder import create as made

    if model is not None and is_run(model):
        run = load_run(model, job, view=view, allow_views=allow_views, server=server)
        if context is None:
            raise Mistake(
                "--context is missing; list the log columns that a client sends once per request, such as --context "
                "user_id,query"
            )
        with blaming(job), reading(None):
            found = made(folder, run.plan, run, context=names_in(context), note=note, sign_with=sign_with)
        if as_json:
            say_json(folder=str(folder), context=list(found.context), model=type(run.model).__name__)
        tell(f"created {folder} with version 1 of the {type(run.model).__name__} model of {model}")
        own = "" if job is None else f" --job {shlex.quote(str(job))}"
        hint(f"ctrbox serve {shlex.quote(str(folder))}{own}{checking(sign_with)}")
        return
    if view or allow_views or server:
        raise Mistake(
            "--view, --allow-views and --server can be used only if --model is a run folder, such as --model runs/today"
        )
    if job is None:
        raise Mistake(
            "the plan is missing; name the job that defines it with --job JOB.PY, or a run folder with --model RUN"
        )
    loaded = load_job(job)
    columns = loaded.context if context is None else names_in(context)
    if not columns and context is None:
        raise Mistake(
            f"{job} defines no `context`; list the log columns that a client sends once per request, such as "
            "--context user_id,query"
        )
    with blaming(job):
        if model is None:
            if loaded.engine is None:
                raise Mistake(f"{job} defines no `engine`; name the saved model: --model model.ffm")
            engine = loaded.needed_engine()
        else:
            engine = DeepFFM.load(Published(model).file() if Path(model).is_dir() else model)
        found = made(folder, loaded.plan, engine, context=columns, note=note, sign_with=sign_with)
    if as_json:
        say_json(folder=str(folder), context=list(found.context), fields=engine.fields, learned=engine.learned)
    tell(f"created {folder} with version 1 of a model that learned from {engine.learned:,} examples")
    hint(f"ctrbox serve {shlex.quote(str(folder))}{checking(sign_with)}")


def checking(key: Path | None) -> str:
    """Return the option by which a server checks what the key signed."""
    return "" if key is None else f" --public-key {shlex.quote(f'{key}.pub')}"


@app.command(
    "request-plan",
    epilog="\b\nExamples:\n  ctrbox publish request-plan model/ -o request.ctr\n"
    "  ctrbox publish request-plan model/ -o request.ctr --view ads=tomorrow/ads\n",
)
def request_plan(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder of a published Deep FFM, as `ctrbox publish create` makes it: a local path, s3://, hdfs:// "
            "or https://.",
        ),
    ],
    output: PlanOutput,
    view: OtherViews = None,
    allow_views: AllowViews = None,
    public_key: PublicKeys = None,
    as_json: AsJson = False,
) -> None:
    """Write the plan of a published model for libctrbox.

    With this file, a program in C, Rust, Java or Go can score raw columns without Python. The file contains the
    rows of the joined views as they are now. It contains no weights: the program also opens a weight file. You need
    not write the plan file again when you publish new versions of the weights.
    """
    from ctrbox.publish import Trust
    from ctrbox.publish.weights_of_models import DEEP_FFM
    from ctrbox.serve import ModelFolder, save_request_plan

    with reading(None):
        model = ModelFolder.open(folder, trust=Trust(public_key) if public_key else None)
        if model.kind != DEEP_FFM:
            raise Mistake(
                f"{folder} does not contain a Deep FFM, and libctrbox can score no other model; name the folder of a "
                "published Deep FFM"
            )
        views = pairs_of("--view", view, "ads=tomorrow/ads")
        save_request_plan(model.plan(views, allow_views=allow_views or ()), output, context=model.context)
    size = output.stat().st_size
    if as_json:
        say_json(output=str(output), bytes=size, context=list(model.context))
    tell(f"wrote {size:,} bytes to {output}")
    hint(f"make -C examples/c request, then: examples/c/request {shlex.quote(str(output))} WEIGHTS < requests.jsonl")


@app.command(epilog="\b\nExamples:\n  ctrbox publish keygen model.key       write model.key and model.key.pub\n")
def keygen(
    key: Annotated[
        Path,
        typer.Argument(
            metavar="KEY",
            help="File to write the private key to; the public key is written to KEY.pub. Existing files are not replaced.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Generate a pair of keys for signing published models.

    The publisher signs with the private key (--sign-with KEY). A server that has the public key (--public-key
    KEY.pub) accepts only models that were signed with this private key. Use one pair of keys for each model. Only
    the owner of the private key file can read it.
    """
    from ctrbox import publish

    made = publish.keygen(key)
    if as_json:
        say_json(id=made.id, private=str(key), public=f"{key}.pub")
    tell(f"wrote the private key {key} and the public key {key}.pub, id {made.id}")
    hint(f"ctrbox publish create model/ --sign-with {shlex.quote(str(key))} …")


@app.command(
    epilog="\b\nExamples:\n  ctrbox publish sign model/weights --sign-with model.key\n"
    "  ctrbox publish sign model/weights --sign-with new.key --public-key old.key.pub\n"
)
def sign(
    folder: Folder,
    sign_with: Annotated[
        Path,
        typer.Option(
            "--sign-with",
            metavar="KEY",
            help="Private key file, made by `ctrbox publish keygen`, with which the command signs the current version.",
        ),
    ],
    public_key: PublicKeys = None,
    as_json: AsJson = False,
) -> None:
    """Sign the current version of a folder. The version itself does not change.

    Use this command in two cases: to sign a folder whose versions were not signed before, or to change to another
    key. In the first case, check the versions with `ctrbox publish log` before you sign. In the second case, use
    --public-key to pass the public key that belongs to the previous private key.
    """
    from ctrbox import publish

    if other := served(folder):
        raise Mistake(f"{folder} is the folder of a served model; expected a folder of published versions{other}")
    published = publish.Published(folder, sign_with=sign_with, trust=publish.Trust(public_key or []))
    version = published.sign()
    statement = published.statement()
    assert statement is not None
    if as_json:
        say_json(**asdict(version), model=statement.model)
    tell(f"signed version {version.number} of {folder} as the model {statement.model}")
    hint(f"ctrbox publish log {shlex.quote(str(folder))}")


def is_run(model: str) -> bool:
    """Return whether a path is that of a run folder; of a URL it must be."""
    return url_of(model) is not None or (Path(model) / "config.json").is_file()


def names_in(context: str) -> tuple[str, ...]:
    return tuple(c.strip() for c in context.split(",") if c.strip())


@app.command(epilog="\b\nExamples:\n  ctrbox publish verify published\n  ctrbox publish verify update.patch new.fbw\n")
def verify(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="Folders of published versions (which may be on s3:// or hdfs://), patches or weight files to check.",
        ),
    ],
    public_key: PublicKeys = None,
    as_json: AsJson = False,
) -> None:
    """Check the checksums and signatures of published files.

    Signatures are checked only if a public key is given. The exit code is 1 if a file is damaged or missing, or if a folder is
    not signed with one of the keys.
    """
    found = [line for path in paths for line in wrong_with(path, public_key or [])]
    if as_json:
        say_json(damaged=found)
    for line in found:
        tell(line)
    if found:
        raise Mistake(f"{len(found)} of the checked files {'are' if len(found) > 1 else 'is'} damaged or missing")
    tell("every checksum matches" + (", and every folder is signed" if public_key else ""))


def wrong_with(path: str, keys: list[Path]) -> list[str]:
    from ctrbox import publish
    from ctrbox.errors import CtrboxError
    from ctrbox.publish.weight_file import is_weights

    if url_of(path) is not None or Path(path).is_dir():
        folder = publish.Published(path, trust=publish.Trust(keys) if keys else None)
        found = folder.verify()
        return found if found or folder.log() else [f"{path} holds no published version{served(path)}"]
    if keys:
        return [
            f"{path} is a file, but only folders of published versions have signatures; remove this path, or "
            "remove --public-key"
        ]
    try:
        publish.read_weights(path) if is_weights(path) else publish.read_facts(path)
    except CtrboxError as error:
        return [str(error)]
    return []


@app.command(
    epilog="\b\nExamples:\n  ctrbox publish push published model.ffm --note 'after lunch'\n"
    "  ctrbox publish push published runs/today --server ad_image=images.ctrvec\n"
)
def push(
    folder: Folder,
    model: ModelFile,
    note: Note = "",
    server: Servers = None,
    job: OwnJob = None,
    sign_with: SignWith = None,
    as_json: AsJson = False,
) -> None:
    """Publish a model as the next version of a folder.

    If MODEL is a run, the command publishes only the dense weights of the run, except in three cases: the run has
    Model Servers, --job is given, or the folder already contains whole runs. In these cases, the command publishes
    the whole run, with its tables and Model Servers.
    """
    from ctrbox import publish

    if other := served(folder):
        raise Mistake(f"{folder} is the folder of a served model; expected a folder of published versions{other}")
    published = publish.Published(folder, sign_with=sign_with)
    told(folder, published.publish(whole(published, model, server or [], job), note=note), as_json)


def whole(published: Any, model: str, servers: list[str], job: Path | None = None) -> Any:
    """Return the run in a folder if it is to be published as a whole, otherwise the path, or the weights of a run on S3
    or HDFS.
    """
    from ctrbox.publish.weights_of_models import CLICK_MODEL, weights_of

    files = vector_files(servers)
    current = published.current
    if not is_run(model):
        if files:
            met = f"{model} is not a run folder" if Path(model).exists() else f"there is no {model}"
            raise Mistake(f"--server can be used only with a run folder, but {met}")
        if job is not None:
            raise Mistake(f"--job can be used only with a run folder, but {model} is not one; remove --job")
        return model
    from ctrbox.predict.read_run_folder import server_tables

    place, stored = fetched(model)
    if not files and job is None and (current is None or current.kind != CLICK_MODEL) and not server_tables(place):
        return model if stored is None else weights_of(place)
    return load_run(model, job, server=servers)


@app.command(epilog="\b\nExamples:\n  ctrbox publish rollback published 6\n")
def rollback(
    folder: Folder,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="Number of the older version to publish again.")],
    note: Note = "",
    sign_with: SignWith = None,
    as_json: AsJson = False,
) -> None:
    """Publish an older version again, as the next version."""
    from ctrbox import publish

    told(folder, publish.Published(folder, sign_with=sign_with).rollback(version, note=note), as_json)


@app.command(epilog="\b\nExamples:\n  ctrbox publish log published\n")
def log(folder: Folder, as_json: AsJson = False) -> None:
    """List the versions of a folder, newest last."""
    from ctrbox import publish

    published = publish.Published(folder)
    versions, signed = published.log(), published.claimed()
    if as_json:
        say_json(versions=[asdict(v) for v in versions], signed=signed)
        return
    if not versions:
        other = served(folder) or f"; try: ctrbox publish push {folder} MODEL"
        raise Mistake(f"{folder} holds no published version{other}")
    for v in versions:
        what = f"copy of version {v.copy_of}" if v.copy_of else v.kind
        say(
            f"{v.number:>8}  {v.time}  {v.bytes:>14,}  {v.patch_bytes:>12,}  {v.sha256[:12]}  {what:<16}  {v.note}".rstrip()
        )
    tell(
        f"version {versions[-1].number} is current; columns: version, time, bytes, bytes of its patch, checksum, kind, note"
    )
    if signed is not None:
        tell(f"signed as the model {signed['model']} by the key {signed['key']}")
        hint(f"ctrbox publish verify {shlex.quote(str(folder))} --public-key FILE")


def served(folder: str) -> str:
    """Return the end of an error: where the versions are, if the folder is that of a served model; otherwise ""."""
    url = stored_url(folder, "a folder of published versions")
    if url is None:
        holds = (Path(folder) / "serve.json").is_file()
    else:
        from ctrbox.files.stored_folder import StoredFolder

        holds = StoredFolder(url, "a folder of published versions").holds("serve.json")
    return f"; its versions are in {folder.rstrip('/')}/weights" if holds else ""


def told(folder: str, version: Any, as_json: bool) -> None:
    if as_json:
        say_json(**asdict(version))
    patch = f", a patch of {version.patch_bytes:,}" if version.patch_bytes else ""
    tell(f"version {version.number} of {folder} is current: {version.bytes:,} bytes{patch}")
    hint(f"ctrbox publish log {shlex.quote(str(folder))}")
