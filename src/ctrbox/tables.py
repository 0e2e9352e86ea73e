"""``cb.tables``: embedders, which turn keys into trainable vectors, and the vector files that some of them read."""

from ctrbox.arguments.names import refuse_unknown
from ctrbox.embed.embedder import Embedder
from ctrbox.embed.embedder_traits import Initial, Traits
from ctrbox.embed.gpu.gpu_table import GpuTable
from ctrbox.embed.gpu.level_table import LevelTable
from ctrbox.embed.memory.memory_table import MemoryTable
from ctrbox.embed.row_lifetime import Admission, Counters
from ctrbox.embed.ssd.repair import repair
from ctrbox.embed.ssd.several_dims import SparseTables
from ctrbox.embed.ssd.sparse_table import SparseTable
from ctrbox.embed.vectors.encode import encode
from ctrbox.embed.vectors.encoders import Encoder
from ctrbox.embed.vectors.model_server import ModelServer
from ctrbox.embed.vectors.prerank import PreRank
from ctrbox.embed.vectors.submodels import ImageEmbedding, TextEmbedding
from ctrbox.embed.vectors.vector_file import VectorFile
from ctrbox.embed.vectors.write_vector_file import write_tokens, write_vectors
from ctrbox.predict.prerank_folder import export_prerank
from ctrbox.train.write_two_tower_vectors import export_vectors

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
