"""The Deep FFM engine: learns one example at a time on the CPU, from batches of a plan or from text (docs/deep_ffm.md)."""
