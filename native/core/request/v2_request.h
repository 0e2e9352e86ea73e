// Finds the tensors of a request of the Open Inference Protocol in its JSON and in the bytes behind it.
//
//   {"id": "…", "inputs": [{"name": "ad_id", "shape": [2], "datatype": "INT64", "data": [1, 2]}, …],
//    "parameters": {"binary_data_output": true}, "outputs": [{"name": "score", "parameters": {"binary_data": true}}]}
//
// An input has `data`, or "parameters": {"binary_data_size": n} for its n bytes behind the JSON, in the order of the
// inputs. This is the fast path of read_infer in ctrbox/serve/tensors.py, for models of one label. It leaves all other
// members, and everything wrong, to that path. The values of `data` are not looked at here (v2_tensors.h).
#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "core/request/v2_tensors.h"

namespace cb {

struct InferRequest {
  static constexpr size_t kMostInputs = 1024;
  static constexpr size_t kLongestText = 1000;

  std::vector<InputTensor> inputs;
  std::string_view id;
  bool binary = false;  // whether the scores are wanted as binary

  // `json` is the JSON of a request, `rest` what follows it. Nothing: the request is left to the slow path.
  static std::optional<InferRequest> read(std::string_view json, std::string_view rest);
};

}  // namespace cb
