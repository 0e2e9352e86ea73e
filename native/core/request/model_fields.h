// Maps the columns of a batch, of the context or of the candidates of a request, to the fields of a Deep FFM: a request
// then goes from the plan's batches to its scores in two calls.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/ffm/engine.h"
#include "core/program/result_sinks.h"

namespace cb {

struct ModelFields {
  std::vector<size_t> sparse;            // fields of the batch that the model reads
  std::vector<size_t> dense;             // columns of its dense matrix that the model reads, ascending
  std::vector<uint64_t> salts;           // of both: hashes of their names
  std::vector<uint16_t> numbers;         // the model's fields they are
  std::vector<std::string> dense_names;  // of the columns in `dense`, for errors

  // The columns named so, of which the model reads those that are among its fields.
  static ModelFields of(const std::vector<std::string>& sparse, const std::vector<std::string>& dense,
                        const std::vector<std::string>& fields);

  // Throws std::invalid_argument, which names the row, for a number that is not finite.
  Examples examples(const Batch& batch) const;
};

}  // namespace cb
