"""Defines ``ctrbox vectors``: vector files for the Model Server, made from raw images, and the vectors of ads for pre-rank."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ctrbox.cli.help_text import Commands
from ctrbox.cli.job_file import load_encoder
from ctrbox.cli.open_runs import AllowViews, OtherViews, OwnJob, RunFolder
from ctrbox.cli.options import AsJson, Servers
from ctrbox.cli.terminal import Mistake, meter, say_json, tell

app = Commands(
    help="Make vector files of images, and of ads for pre-rank.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def vectors() -> None:
    """Make vector files of images, and of ads for pre-rank."""


@app.command(
    epilog="\b\nExamples:\n  ctrbox vectors encode images --encoder vgg16-fc6 --weights vgg16.safetensors -o images.ctrvec\n"
    "  ctrbox vectors encode images --encoder palette.py -o images.ctrvec     an encoder of your own\n"
)
def encode(
    images: Annotated[
        Path,
        typer.Argument(
            metavar="IMAGES", help="Folder of JPEG, PNG and WebP files, or a Parquet file with a column of such images."
        ),
    ],
    encoder: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE.PY",
            help="Network that computes the vectors: vgg16-fc6 (4,096 numbers per image), or a Python file that defines "
            "`encoder`, a cb.tables.Encoder of your own. The command executes this file.",
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="Vector file to write.")],
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Weights of the network: a safetensors file, or a torch file of tensors. Required for vgg16-fc6; an encoder of "
            "your own loads its weights itself.",
        ),
    ] = None,
    space: Annotated[
        str, typer.Option(metavar="SPACE", help="Space of the keys, as in `.key(space=…)` of the job.")
    ] = "image",
    ids: Annotated[
        str,
        typer.Option(
            metavar="text|int",
            help="Type of the ids from which the keys are made: text or int. Give the type that the ids have in the job, because "
            "the text 17 and the number 17 have different keys.",
        ),
    ] = "text",
    key: Annotated[
        str,
        typer.Option(
            metavar="COLUMN",
            help="Column with the ids in a Parquet file. If IMAGES is a folder, the only column is `name`: the name of the "
            "file without its ending.",
        ),
    ] = "name",
    column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column with the images in a Parquet file. Default: image.")
    ] = None,
    batch_size: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=65_536,
            help="Number of images per batch. A GPU encodes all images of a batch together. A CPU encodes one image after "
            "the other, and the command writes the vectors of a batch together.",
        ),
    ] = 32,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=256,
            help="Number of threads that decode images and run the network; on a GPU, number of processes that decode images. "
            "Default: the number of usable cores.",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="DEVICE", help="Device of vgg16-fc6: cpu or cuda. An encoder of your own chooses its device itself."
        ),
    ] = "cpu",
    dtype: Annotated[
        str, typer.Option(metavar="TYPE", help="Data type of the vectors: float32 or float16.")
    ] = "float32",
    as_json: AsJson = False,
) -> None:
    """Write a vector file with one vector for each image.

    The command lists images that it cannot decode in the file FILE.skipped.jsonl. If you stop the command and run
    it again, it continues where it stopped.
    """
    from ctrbox import View, col
    from ctrbox.embed.vectors.encode import encode as encode_items
    from ctrbox.embed.vectors.encoders import Encoder

    if ids not in ("text", "int"):
        raise Mistake(f"--ids must be text or int, got {ids!r}")
    folder = images.is_dir()
    if folder and column is not None:
        raise Mistake("--column names a column of a Parquet file, but IMAGES is a folder; remove --column")
    if encoder.endswith(".py"):
        if weights is not None:
            raise Mistake(
                f"--weights can be used only with vgg16-fc6, because {encoder} loads the weights of its encoder "
                "itself; remove --weights"
            )
        made = load_encoder(Path(encoder))
    elif weights is None:
        raise Mistake(f"--encoder {encoder} needs the weights of the network; add --weights FILE")
    else:
        made = Encoder.named(encoder, weights, device=device)
    named = col(key).cast("int") if folder and ids == "int" else col(key)
    expression = (named.cast("str") if ids == "text" and not folder else named).key(space=space)
    with meter("images") as tick:
        done = encode_items(
            out,
            images if folder else View(images),
            made,
            key=expression,
            column=None if folder else column or "image",
            batch_size=batch_size,
            threads=threads,
            dtype=dtype,
            progress=tick,
        )
    skipped = sum(done.skipped.values())
    if as_json:
        say_json(
            out=str(out),
            items=done.items,
            encoded=done.encoded,
            resumed=done.resumed,
            skipped=done.skipped,
            rows=len(done.file),
            width=done.file.width,
            seconds={stage: round(seconds, 3) for stage, seconds in done.seconds.items()},
        )
        return
    tell(f"{out}: {len(done.file):,} vectors of {done.file.width:,} numbers; {done.encoded:,} images were encoded")
    if skipped:
        causes = ", ".join(f"{number:,} {cause}" for cause, number in sorted(done.skipped.items()))
        tell(f"{skipped:,} images have no vector ({causes}); {shlex.quote(str(done.report))} lists them")


@app.command(epilog="\b\nExamples:\n  ctrbox vectors prerank runs/towers ads -o ads.prerank --index hnsw\n")
def prerank(
    run: RunFolder,
    ads: Annotated[
        str,
        typer.Argument(
            metavar="VIEW", help="Name of the view of ads that the plan joins, such as ads; every row gets a vector."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("-o", "--out", metavar="FOLDER", help="Folder to write; an existing pre-rank folder is replaced."),
    ],
    key: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Field whose key identifies an ad. Default: the first field of the ad tower (the part of the model that "
            "computes the vector of an ad).",
        ),
    ] = None,
    columns: Annotated[
        str,
        typer.Option(
            metavar="COLUMN,…",
            help="Further columns of the view to store, separated by commas, such as the columns that the main model of "
            "the server needs. The columns that the ad tower reads are always stored. Default: no further columns.",
        ),
    ] = "",
    index: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="How a server searches for the best ads: with 'exact', it compares the vectors of all ads; with 'hnsw', "
            "the command also builds an approximate index (needs pip install 'ctrbox[prerank]') and measures its "
            "recall.",
        ),
    ] = "exact",
    recall_at: Annotated[
        int,
        typer.Option(
            min=1,
            max=100_000,
            metavar="K",
            help="Number K for measuring the recall of an index: the recall is the share of the best K ads that a search "
            "finds.",
        ),
    ] = 400,
    view: OtherViews = None,
    allow_views: AllowViews = None,
    job: OwnJob = None,
    server: Servers = None,
    as_json: AsJson = False,
) -> None:
    """Write the vectors of all ads for the pre-rank of ctrbox serve.

    RUN is a run of a TwoTower model. Start the server with `ctrbox serve MODEL --prerank FOLDER --prerank-run RUN`.
    """
    from ctrbox.cli.open_runs import load_run
    from ctrbox.predict.prerank_folder import export_prerank

    loaded = load_run(run, job, view=view, allow_views=allow_views, server=server)
    kept = [name.strip() for name in columns.split(",") if name.strip()]
    made = export_prerank(loaded, ads, out, key=key, columns=kept, index=index, recall_at=recall_at)
    if as_json:
        say_json(
            out=str(out),
            vectors=len(made.rank),
            width=made.rank.dim,
            key=made.key,
            columns=made.ads.schema.names,
            index=index,
            recall=made.recall,
            recall_at=made.recall_at or None,
        )
        return
    tell(
        f"{out}: {len(made.rank):,} vectors of {made.rank.dim} numbers, stored with the columns "
        f"{', '.join(made.ads.schema.names)} of their ads"
    )
    if made.recall is not None:
        tell(f"the index finds {made.recall:.1%} of the best {made.recall_at:,} ads, for users of the run's log")
