"""Opens the folder that ``ctrbox serve`` is given: a plan with the published versions of a model, or a run folder.

    model/
      serve.json     sealed: kind, the columns of the log that come once per request, the fingerprint of the plan
      plan.ctr       the plan
      log.arrow      the columns of the log without rows, so that a server does not need the log
      weights/       versions, patches and their list (`cb.publish.Published`)
      online.json    progress of an online loop, if one writes into this folder

`create` writes the folder, which is complete or not there at all. After that, only `weights/` and `online.json` change. Joined
views are opened where the plan found them, or where ``views`` says. A damaged file is refused, and so are a plan and weights that
do not belong together.

With ``trust``, only files that a trusted key signed are opened (publish/signed_statement.py). Those of a local folder are copied
first, so that nobody can change a file between its check and its use.
"""

from __future__ import annotations

import hashlib
import os
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather

from ctrbox.arguments.names import nearest
from ctrbox.compiled_plan.plan import Plan
from ctrbox.engines.history.history_columns_of_log import base_of
from ctrbox.engines.run_on_request import merged_as_streams
from ctrbox.errors import DataError, PlanError, SignatureError, SourceError, WriteError
from ctrbox.ffm.engine import DeepFFM
from ctrbox.files.atomic import written_aside
from ctrbox.files.sealed_json import read_sealed, sealed
from ctrbox.files.stored_folder import OtherContents, StoredFolder
from ctrbox.files.temporary_folder import OwnFolder
from ctrbox.files.untrusted_files import open_regular, read_regular
from ctrbox.files.urls import readable_url, stored_url
from ctrbox.plan.language.user_operators import UserOperator
from ctrbox.predict.predictor import Predictor
from ctrbox.publish.signed_statement import COVERED, FileFacts, Trust
from ctrbox.publish.signing_keys import PrivateKey
from ctrbox.publish.stored_versions import StoredVersions
from ctrbox.publish.versions import Published
from ctrbox.publish.web_folder import WebFolder, open_folder
from ctrbox.publish.weights_of_models import CLICK_MODEL, DEEP_FFM
from ctrbox.views.view import Merge

RUN = "run"
MANIFEST, PLAN, LOG, WEIGHTS, ONLINE = "serve.json", "plan.ctr", "log.arrow", "weights", "online.json"
LATER = (
    f"{WEIGHTS}/versions/",
    f"{WEIGHTS}/patches/",
    "checkpoints/",
    "best/",
)  # files that are not downloaded at once


@dataclass(frozen=True)
class ModelFolder:
    """The folder of a served model: ``ModelFolder.open("model/")`` opens one, ``create`` makes one."""

    folder: Path
    kind: str  # DEEP_FFM; CLICK_MODEL, a run that is published; RUN, the folder of one
    context: tuple[str, ...]  # columns of the log that come once per request; of a run: as each request says
    fingerprint: str  # of the plan; "" of a run, which checks it itself
    stored: StoredFolder | None = None  # the folder on S3 or HDFS of which ``folder`` is the local copy
    key: PrivateKey | None = None  # that signs new versions
    trust: Trust | None = None  # believe only what its keys signed
    signed_copy: SignedCopy | None = None  # of a local folder: ``folder`` is this copy

    @staticmethod
    def open(
        folder: str | os.PathLike[str],
        *,
        sign_with: PrivateKey | str | os.PathLike[str] | None = None,
        trust: Trust | None = None,
    ) -> ModelFolder:
        """Open a local folder, or one on s3://, hdfs:// or https://, which is downloaded without the weights of its versions.

        ``sign_with``, ``trust``: as for ``cb.publish.Published``.
        """
        key = sign_with if sign_with is None or isinstance(sign_with, PrivateKey) else PrivateKey.read(sign_with)
        trust = trust if key is None else (Trust([]) if trust is None else trust).also(key.public)
        url, stored, copy = readable_url(folder, "a served model"), None, None
        place = Path(folder)
        if url is not None:
            stored = open_folder(url, "a served model", signed=trust is not None)
            stored.need()
            if trust is None:
                if isinstance(stored, WebFolder):
                    stored.find(COVERED)
                stored.pull(lambda name: not name.startswith(LATER))
            place = stored.path
        if trust is not None and (stored is not None or place.is_dir()):
            copy = pull_signed(place, stored, trust)
            place = place if copy is None else copy.folder
        if not place.is_dir():
            raise SourceError(f"there is no model folder {place}; check the path, or create it: ctrbox publish create")
        if not (place / MANIFEST).exists() and (place / "config.json").exists():
            return ModelFolder(place, RUN, (), "", stored)
        found = read_sealed(place / MANIFEST, "model folder")
        kind, context, fingerprint = found.get("kind"), found.get("context"), found.get("fingerprint")
        known = kind in (DEEP_FFM, CLICK_MODEL)
        if not known or not isinstance(fingerprint, str) or not isinstance(context, list):
            raise DataError(
                f"{place / MANIFEST} describes a model of kind {kind!r}; this version of CTRBox serves "
                f"only the kinds {DEEP_FFM!r} and {CLICK_MODEL!r}"
            )
        assert isinstance(kind, str)
        return ModelFolder(place, kind, tuple(map(str, context)), fingerprint, stored, key, trust, copy)

    @property
    def published(self) -> Published:
        """The published versions of the model's weights, with patches, log and rollback."""
        if self.kind == RUN:
            raise PlanError(
                f"{self.folder} is the folder of a run, which has no published versions; publish the run: ctrbox publish "
                "create"
            )
        where = self.source / WEIGHTS if self.stored is None else StoredVersions(self.stored, f"{WEIGHTS}/")
        return Published(where, sign_with=self.key, trust=self.trust)

    @property
    def source(self) -> Path:
        """The local folder that was opened, also where ``folder`` is a copy of its signed files."""
        return self.folder if self.signed_copy is None else self.signed_copy.source

    @property
    def online(self) -> Path:
        """Path of the file in which an online loop reports its progress to the server. It is not signed."""
        return self.source / ONLINE

    def plan(
        self,
        views: Mapping[str, Any] | None = None,
        *,
        allow_operators: bool | Sequence[UserOperator] = False,
        allow_views: Sequence[str] = (),
    ) -> Plan:
        """Return the plan, for the CPU. ``views``: other data for its views, by name.

        ``allow_operators``, ``allow_views``: as for ``cb.Plan.load``.
        """
        if self.kind == RUN:
            raise PlanError(f"{self.folder} is a run folder; open it with cb.Run.load")
        given = dict(views or {})
        if self.signed_copy is not None:  # the views beside the folder itself may be opened, as without signatures
            allow_views = [*allow_views, str(self.source.resolve().parent)]
        path = self.folder / LOG
        if path.exists():
            try:
                # The columns alone: a file that holds rows, and claims that they are many, is not read. Not mapped: a file
                # that is cut off later would give SIGBUS.
                with open_regular(path) as file:
                    log = pa.ipc.open_file(file).schema.empty_table()
            except (pa.ArrowException, OSError, ValueError) as error:
                raise SourceError(f"cannot read {path}: {error}") from error
            given.setdefault((log.schema.metadata or {}).get(b"view", b"log").decode(errors="replace"), log)
        plan = Plan.load(
            self.folder / PLAN, views=given, allow_operators=allow_operators, allow_views=allow_views, device="cpu"
        )
        if plan.fingerprint != self.fingerprint:
            raise DataError(
                f"{self.folder / PLAN} has fingerprint {plan.fingerprint[:16]}"
                f"…, but the model was made with "
                f"{self.fingerprint[:16]}…: since then, the columns of a view, or the columns that have nulls, have changed"
            )
        return plan

    def engine(self, number: int | None = None, *, learns: bool = False) -> DeepFFM:
        """Load the Deep FFM of a published version; default: the current one. It has accumulators only with ``learns``."""
        if self.kind != DEEP_FFM:
            raise PlanError(
                f"{self.folder} serves a model of kind {self.kind!r}; only the folder of a Deep FFM has an engine"
            )
        return DeepFFM.load(self.published.file(number), learns=learns)


def warn_of_merged(plan: Plan) -> None:
    """Warn if features read a view that is merged as a stream, because requests to a published model cannot bring its columns."""
    merged = merged_as_streams(plan.graph)
    if name := next((n for n in plan.request_schema().names if n in merged), None):
        warnings.warn(
            f"features read column {name!r} of view {merged[name]!r}, which the plan merges as a stream; requests to a published "
            "model cannot bring the columns of this view, so these features always use its fill values; serve the run folder "
            "instead, or train with merge(…, ordered=False), which looks the rows up by their id",
            stacklevel=3,
        )


def create(
    folder: str | os.PathLike[str],
    plan: Plan,
    engine: Predictor,
    *,
    context: Sequence[str],
    note: str = "",
    quantize: bool = True,
    sign_with: PrivateKey | str | os.PathLike[str] | None = None,
) -> ModelFolder:
    """Write a model's folder, which may be on s3:// or hdfs://, with version 1 published. It is complete or not there at all.

    ``engine``: a Deep FFM, or a run; the vectors of all objects of its Model Servers are computed now. For a model of your own
    class, the folder contains only the weights: a server needs the class as well (``ctrbox serve model/ --job job.py``).
    ``context``: the columns of the log that come once per request; every other column that the plan reads comes with each
    candidate. ``quantize``: store weights as 16-bit codes. ``sign_with``: a private key, or its file, that signs the folder and
    its versions.
    """
    key = sign_with if sign_with is None or isinstance(sign_with, PrivateKey) else PrivateKey.read(sign_with)
    url = stored_url(folder, "a served model")
    stored = None if url is None else StoredFolder(url, "a served model")
    place = Path(folder) if stored is None else stored.path
    taken = place.exists() and (not place.is_dir() or any(place.iterdir())) if stored is None else stored.exists
    if taken:
        shown = url or place
        raise WriteError(f"{shown} exists and is not empty; publish to {shown}/{WEIGHTS}, or choose another folder")
    if stored is not None:
        stored.claim()
    if not isinstance(plan, Plan):
        raise PlanError(f"create needs a plan, as cb.compile returns it, got {type(plan).__name__}")
    plan.fit()  # a served model has the values that its plan took from the log
    schema = plan.log.source.schema
    if isinstance(context, str):
        raise PlanError(f"context= must be a list of column names, got {context!r}")
    for name in context:
        if name not in schema.names:
            raise PlanError(f"column {name!r} is not in view {plan.log.name!r}{nearest(name, schema.names)}")
    if not isinstance(engine, Predictor):
        raise PlanError(f"create needs a cb.DeepFFM or a cb.Run, got {type(engine).__name__}")
    engine.check_schema(plan.schema)
    warn_of_merged(plan)
    with written_aside(place, folder=True) as aside:
        aside.mkdir()
        plan.save(aside / PLAN)
        Published(aside / WEIGHTS).serves(list(plan.schema.key_kinds), plan.schema.key_kinds)
        if not any(isinstance(step, Merge) for step in plan.log.steps):  # merged rows need the log's own order
            # Without the history columns: the plan computes these, or requests bring them.
            empty = base_of(plan.log.source).schema.with_metadata({"view": plan.log.name}).empty_table()
            with written_aside(aside / LOG) as file:
                feather.write_feather(empty, str(file), compression="uncompressed")
        manifest = {"kind": engine.kind, "context": list(context), "fingerprint": plan.fingerprint}
        with written_aside(aside / MANIFEST) as file:
            file.write_text(sealed(manifest), encoding="utf-8")
        # Last, because a signature covers the other files.
        Published(aside / WEIGHTS, sign_with=key).publish(engine, note=note, quantize=quantize)
    if stored is not None:
        stored.push()
        stored.close()
    return ModelFolder.open(folder, sign_with=key)


class SignedCopy:
    """Copies of the signed files of a local model folder, ``source``, in a folder that only this process uses, ``folder``."""

    def __init__(self, source: Path, files: Mapping[str, FileFacts]) -> None:
        own = OwnFolder("ctrbox-signed-")
        self._finalize = weakref.finalize(self, own.close)
        self.source, self.folder = source, own.place / (source.resolve().name or "model")
        self.folder.mkdir()
        for name, facts in files.items():
            try:
                read = read_regular(source / name, facts.bytes)
            except OSError as error:
                raise SourceError(f"cannot read {source / name}: {error.strerror or error}") from error
            except DataError as error:
                raise SignatureError(f"{source / name} was changed after it was signed: {error}") from None
            if FileFacts(len(read), hashlib.sha256(read).hexdigest()) != facts:
                raise SignatureError(f"{source / name} was changed after it was signed")
            (self.folder / name).write_bytes(read)


def pull_signed(place: Path, stored: StoredFolder | None, trust: Trust) -> SignedCopy | None:
    """Fetch the files that are signed together with the versions of a model, and no others. For a local folder, return copies."""
    shown = place if stored is None else stored.url
    where = place / WEIGHTS if stored is None else StoredVersions(stored, f"{WEIGHTS}/")
    statement = Published(where, trust=trust).statement()
    if statement is None or MANIFEST not in statement.files or PLAN not in statement.files:
        met = "its signature does not cover a plan" if statement is not None else "it holds no published version"
        raise SignatureError(
            f"{shown} is not a signed model folder: {met}. Make one: ctrbox publish create --sign-with KEY"
        )
    if stored is None:
        return SignedCopy(place, statement.files)
    for name, facts in statement.files.items():
        try:
            stored.expect(name, facts.bytes, facts.sha256)
        except DataError:
            raise SignatureError(f"{name} of {stored.url} was changed after it was signed") from None
        if name not in stored.files:
            raise SourceError(f"{name} of {stored.url} is missing")
    try:
        stored.pull(lambda name: name in statement.files)
    except OtherContents as error:
        raise SignatureError(f"a file of {stored.url} was changed after it was signed: {error}") from None
    return None
