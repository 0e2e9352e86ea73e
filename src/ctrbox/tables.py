"""``cb.tables``: embedders, which turn keys into trainable vectors, and the vector files that some of them read."""

from ctrbox.arguments.names import refuse_unknown
from ctrbox.embed.embedder import Embedder
from ctrbox.embed.gpu.levels import LevelTable
from ctrbox.embed.gpu.table import GpuTable
from ctrbox.embed.memory.table import MemoryTable
from ctrbox.embed.row_lifetime import Admission, Counters
from ctrbox.embed.ssd.dims import SparseTables
from ctrbox.embed.ssd.repair import repair
from ctrbox.embed.ssd.table import SparseTable
from ctrbox.embed.traits import Initial, Traits
from ctrbox.embed.vectors.encode import encode
from ctrbox.embed.vectors.encoders import Encoder
from ctrbox.embed.vectors.file import VectorFile
from ctrbox.embed.vectors.model_server import ModelServer
from ctrbox.embed.vectors.prerank import PreRank
from ctrbox.embed.vectors.submodels import ImageEmbedding, TextEmbedding
from ctrbox.embed.vectors.write import write_tokens, write_vectors
from ctrbox.predict.prerank_folder import export_prerank
from ctrbox.train.two_tower_file import export_vectors

__all__ = [
    "Admission",
    "Counters",
    "Embedder",
    "Encoder",
    "GpuTable",
    "ImageEmbedding",
    "Initial",
    "LevelTable",
    "MemoryTable",
    "ModelServer",
    "PreRank",
    "SparseTable",
    "SparseTables",
    "TextEmbedding",
    "Traits",
    "VectorFile",
    "encode",
    "export_prerank",
    "export_vectors",
    "repair",
    "write_tokens",
    "write_vectors",
]

refuse_unknown(__name__, __all__)
