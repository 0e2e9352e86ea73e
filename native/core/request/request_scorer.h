// Turns the bytes of a request into scores, with a plan for requests (request_plan.h) and a Deep FFM.
//
//   body ─► RequestRows ─► context frame   ─► once ─────► batch of 1 row ────► FfmContext ─┐
//                      │                  └─► shared ───► frame of 1 row ─┐                │
//                      └─► candidate frame ─► filter ─► each ◄────────────┘ ─► batch ──────┴─► scores
//
// There are two callers. libctrbox calls `read` and then `score`, whose errors have messages. The server calls
// `answer`, which keeps contexts in a cache and takes only requests that the native reader can read (request_rows.h).
// Python handles all other requests and writes the messages (ctrbox/serve/served_models.py): its slower path runs the
// same programs, readers and engine one after the other. Tests compare the scores of both paths, bit by bit.
//
// Threads: a scorer does not change after it is constructed, so any number of threads may use it at once.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/ffm/engine.h"
#include "core/request/context_cache.h"
#include "core/request/model_fields.h"
#include "core/request/request_plan.h"
#include "core/request/request_times.h"
#include "core/request/v2_tensors.h"

namespace cb {

// A request that cannot be scored; the message says why.
struct BadRequest : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The context or the candidates of a request cannot be scored.
struct BadPart : std::runtime_error {
  BadPart(bool of_context_, int64_t row_, const std::string& what)
      : std::runtime_error(what), of_context(of_context_), row(row_) {}
  bool of_context;
  int64_t row;  // 0 for the context, or the number of the candidate; -1 if the message names the place itself
};

// A score is not finite. position: its place among the candidates that no filter dropped.
struct BadScore : std::runtime_error {
  BadScore(size_t position_, const std::string& what) : std::runtime_error(what), position(position_) {}
  size_t position;
};

// The part of a request's scores that depends on its context alone, computed once for all candidates.
struct RequestContext {
  std::shared_ptr<Frame> frame;           // columns that candidates read of the context; nullptr: none
  FfmContext prepared;                    // set if the model computes a context once
  std::shared_ptr<const Batch> features;  // of the context; nullptr if the model computes a context once

  uint64_t bytes() const { return sizeof *this + prepared.bytes() + (frame ? frame->bytes() : 0); }
};

// A plan for requests with a model. Any number of threads may use one.
class RequestScorer {
 public:
  // Throws std::invalid_argument unless the model's fields are features of the plan.
  RequestScorer(std::shared_ptr<const RequestPlan> plan, std::shared_ptr<const DeepFfm> model,
                const std::vector<std::string>& fields);

  struct Request {
    std::shared_ptr<Frame> context, candidates;
    size_t rows = 0;
  };
  // Reads the JSON of a request, as POST /v1/score takes it. Throws BadRequest.
  Request read(std::string_view body) const;
  // Writes a probability for each candidate, NaN if a filter of the plan drops it. Throws BadRequest, BadScore.
  void score(const Request& request, float* scores) const;

  // Reads and scores a request with a model that computes a context once (`shares`), and counts a hit or a miss. The
  // cache keeps the context under a key of `versions` followed by the bytes of the context. Returns no scores if the
  // slow path must take the request; then nothing was counted or kept. Throws BadPart, BadScore, and SpilledViewError
  // for a joined view on a disk.
  std::optional<std::vector<float>> answer(std::string_view body, std::string_view versions, ContextCache& cache,
                                           RequestTimes* times = nullptr) const;

  // The same for the tensors of a request.
  std::optional<std::vector<float>> answer(const std::vector<InputTensor>& tensors, std::string_view versions,
                                           ContextCache& cache, RequestTimes* times = nullptr) const;

  bool shares() const { return shares_; }
  const RequestPlan& plan() const { return *plan_; }
  std::shared_ptr<const RequestPlan> shared_plan() const { return plan_; }

 private:
  // Returns what the cache holds under the key, or what it holds after the row of the context, which `made` returns,
  // was prepared. Returns nothing if `made` returns nullptr. Throws BadPart.
  template <class Made>
  ContextCache::Value met(const std::string& key, ContextCache& cache, RequestTimes* times, Made made) const;
  std::vector<float> scores_of(const ContextCache::Value& context, const std::shared_ptr<Frame>& candidates,
                               int64_t rows, RequestTimes* times) const;
  // Throws BadPart.
  RequestContext prepared(const std::shared_ptr<Frame>& context, RequestTimes* times = nullptr) const;
  // `rows` is at least one. Throws BadPart, BadScore.
  void score(const RequestContext& context, const std::shared_ptr<Frame>& candidates, size_t rows, float* scores,
             RequestTimes* times = nullptr) const;
  void score_parts(const RequestContext& context, const Batch& candidates, float* scores,
                   const std::vector<int32_t>* index) const;

  std::shared_ptr<const RequestPlan> plan_;
  std::shared_ptr<const DeepFfm> model_;
  bool shares_ = false;  // the model computes a context once, because its context fields are those of the plan
  ModelFields once_, each_, joined_;
};

}  // namespace cb
