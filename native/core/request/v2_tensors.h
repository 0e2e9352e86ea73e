// Turns the tensors of a request into the frames that RequestRows makes of JSON: one of the context, one of the
// candidates. A tensor is a raw column. That of the context has one row, those of the candidates have n.
//
//   shape [n] or [n, 1]          data: n elements, in one of these forms
//   fixed widths, binary         the elements in order, little-endian
//   BYTES, binary                4 bytes of length, little-endian, then the bytes, for each element
//   JSON                         a list of n values, or of n lists of one value
//
// This is the fast path of RequestReader.from_tensors (ctrbox/serve/request.py). What it accepts, it reads with the
// same result as that. It leaves everything else to the slow path, which also makes the messages: lists, FP16, and
// everything wrong. Columns of the log that the plan does not read may come; only their sizes and datatypes are
// checked. The bytes are not trusted: no size is used before it was compared with the bytes that are there.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/request/request_column.h"
#include "core/request/request_rows.h"

namespace cb {

struct InputTensor {
  std::string_view name, datatype;
  std::vector<int64_t> shape;
  std::string_view data;
  bool json = false;  // data is the text of a JSON list
};

class RequestTensors {
 public:
  // The values of a request. They point into the bytes of its tensors.
  struct Read {
    int64_t rows = 0;  // of the candidates
    std::vector<Filling> context, candidates;
    Bump texts{256};  // of JSON with escapes
  };

  // Columns that a request brings; both must outlive this.
  RequestTensors(const RequestRows& context, const RequestRows& candidates)
      : context_(context.columns()),
        candidates_(candidates.columns()),
        ignored_{&context.ignored(), &candidates.ignored()},
        most_(candidates.most()) {}

  // Every column once and at least one candidate; nothing if the request is left to the slow path.
  std::optional<Read> read(const std::vector<InputTensor>& tensors) const;
  // The values of a context: equal for equal values, whatever datatypes and forms they came in. The slow path makes the
  // same bytes (key_of_values in ctrbox/serve/request.py).
  std::string key(const Read& read) const;
  // Frames of `read`, which loses its values. `read` and the bytes of the tensors must outlive them.
  std::shared_ptr<Frame> context(Read& read) const;
  std::shared_ptr<Frame> candidates(Read& read) const;

 private:
  const std::vector<RequestRows::Column>&context_, &candidates_;
  const std::vector<std::string>* ignored_[2];  // columns that may come and are not read
  int64_t most_;
};

}  // namespace cb
