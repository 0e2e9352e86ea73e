// Turns the bytes of a request into scores, with a plan for requests (request_plan.h) and a Deep FFM.
//
//   body ─► RequestRows ─► context frame   ─► once ─────► batch of 1 row ────► FfmContext ─┐
//                      │                  └─► shared ───► frame of 1 row ─┐                │
//                      └─► candidate frame ─► filter ─► each ◄────────────┘ ─► batch ──────┴─► scores
//
// Two callers. libctrbox: `read`, then `score`; what is wrong with a request is said in words here. The server:
// `answer`, which keeps contexts in a cache and takes only requests that are plain (request_rows.h). All others, and
// the words for what is wrong, are left to Python (ctrbox/serve/served.py), whose slower path runs the same programs,
// readers and engine one after the other; tests compare the scores of both paths, bit by bit.
//
// Threads: everything is constant after it was made; any number may score at once.
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
  int64_t row;  // of the context (0), or the candidate's number; -1: the message says what there is to say
};

// A score is not finite. position: its place among the candidates that no filter dropped.
struct BadScore : std::runtime_error {
  BadScore(size_t position_, const std::string& what) : std::runtime_error(what), position(position_) {}
  size_t position;
};

// What was worked out from the context of a request for all its candidates.
struct RequestContext {
  std::shared_ptr<Frame> frame;           // what candidates read of the context; nullptr: nothing
  FfmContext prepared;                    // if the model works out a context once
  std::shared_ptr<const Batch> features;  // of the context; nullptr if the model works out a context once

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
  // Reads the JSON of a request, as POST /v1/score takes it. BadRequest.
  Request read(std::string_view body) const;
  // Writes a probability for each candidate, NaN where a filter of the plan drops it. BadRequest, BadScore.
  void score(const Request& request, float* scores) const;

  // Reads and scores a request with a model that works out a context once (`shares`). Its context is kept in the cache
  // under `versions`, which stands before the bytes of the context, and hits and misses are counted. Nothing: the
  // request is left to the slow path, and nothing was counted or kept. BadPart, BadScore; SpilledViewError of a joined
  // view on a disk.
  std::optional<std::vector<float>> answer(std::string_view body, std::string_view versions, ContextCache& cache) const;

  bool shares() const { return shares_; }
  const RequestPlan& plan() const { return *plan_; }
  std::shared_ptr<const RequestPlan> shared_plan() const { return plan_; }

 private:
  // BadPart.
  RequestContext prepared(const std::shared_ptr<Frame>& context) const;
  // BadPart, BadScore. rows: at least one.
  void score(const RequestContext& context, const std::shared_ptr<Frame>& candidates, size_t rows, float* scores) const;
  void score_parts(const RequestContext& context, const Batch& candidates, float* scores,
                   const std::vector<int32_t>* index) const;

  std::shared_ptr<const RequestPlan> plan_;
  std::shared_ptr<const DeepFfm> model_;
  bool shares_ = false;  // whether the model works out a context once: its context fields are those of the plan
  ModelFields once_, each_, joined_;
};

}  // namespace cb
