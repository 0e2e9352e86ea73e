#include "core/request/request_scorer.h"

#include <algorithm>
#include <limits>

namespace cb {

namespace {

// The input of a program: the rows of a frame, and no rows of merged views.
Piece piece_of(const std::shared_ptr<Frame>& frame, size_t merged, int64_t rows) {
  Piece piece;
  piece.rows = rows;
  piece.sources.resize(1 + merged);
  piece.sources[0].frame = frame.get();
  return piece;
}

std::shared_ptr<Batch> run_batch(const RequestPart& part, const Piece& piece) {
  BatchSink sink(part.slots, part.dense_width, part.sparse.size(), piece.rows, {});
  part.program->run({piece}, sink);
  return sink.batch();
}

// One batch with the context's features in every row.
Batch joined(const Batch& once, const Batch& each) {
  Batch out;
  const size_t rows = static_cast<size_t>(each.rows);
  out.rows = each.rows;
  out.dense_width = once.dense_width + each.dense_width;
  out.dense.resize(rows * out.dense_width);
  for (size_t r = 0; r < rows; ++r) {
    float* to = out.dense.data() + r * out.dense_width;
    std::copy_n(once.dense.data(), once.dense_width, to);
    std::copy_n(each.dense.data() + r * each.dense_width, each.dense_width, to + once.dense_width);
  }
  for (const Batch::Field& field : once.fields) {
    Batch::Field& many = out.fields.emplace_back();
    const size_t n = field.values.size();
    many.ragged = true;
    many.values.resize(rows * n);
    many.offsets.resize(rows + 1);
    for (size_t r = 0; r < rows; ++r) std::copy_n(field.values.data(), n, many.values.data() + r * n);
    for (size_t r = 0; r <= rows; ++r) many.offsets.data()[r] = static_cast<int64_t>(r * n);
  }
  for (const Batch::Field& field : each.fields) {
    Batch::Field& same = out.fields.emplace_back();
    same.ragged = field.ragged;
    same.values.resize(field.values.size());
    std::copy_n(field.values.data(), field.values.size(), same.values.data());
    same.offsets.resize(field.offsets.size());
    std::copy_n(field.offsets.data(), field.offsets.size(), same.offsets.data());
  }
  return out;
}

template <class T>
std::vector<T> together(const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> out = a;
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

// Calls a function of the model on a part of a request, and turns an error into a BadPart.
template <class F>
void of_part(bool context, F call) {
  try {
    call();
  } catch (const std::invalid_argument& e) {
    throw BadPart(context, -1, e.what());
  }
}

std::string number_of(int64_t position, const std::vector<int32_t>* index) {
  return std::to_string(index ? (*index)[static_cast<size_t>(position)] : position);
}

}  // namespace

RequestScorer::RequestScorer(std::shared_ptr<const RequestPlan> plan, std::shared_ptr<const DeepFfm> model,
                             const std::vector<std::string>& fields)
    : plan_(std::move(plan)), model_(std::move(model)) {
  const RequestPart &once = plan_->once, &each = plan_->each;
  const std::vector<std::string> context = together(once.sparse, once.dense);
  const std::vector<std::string> all = together(context, together(each.sparse, each.dense));
  for (const std::string& field : fields)
    if (std::find(all.begin(), all.end(), field) == all.end())
      throw std::invalid_argument("the model's field '" + field.substr(0, 100) + "' is not a feature of the plan");
  const size_t mine = model_->settings().context;
  shares_ = mine > 0;
  for (size_t f = 0; f < fields.size(); ++f)
    shares_ = shares_ && (std::find(context.begin(), context.end(), fields[f]) != context.end()) == (f < mine);
  once_ = ModelFields::of(once.sparse, once.dense, fields);
  each_ = ModelFields::of(each.sparse, each.dense, fields);
  joined_ = ModelFields::of(together(once.sparse, each.sparse), together(once.dense, each.dense), fields);
}

RequestScorer::Request RequestScorer::read(std::string_view body) const {
  std::string why;
  const auto found = plan_->candidates.read(body, &why);
  if (!found) throw BadRequest(why);
  const std::string_view given = body.substr(found->context_begin, found->context_end - found->context_begin);
  Request out;
  out.context = plan_->context.row(given.empty() ? std::string_view("{}") : given, &why);
  if (!out.context) throw BadRequest("context: " + why);
  out.candidates = found->frame;
  out.rows = static_cast<size_t>(found->rows);
  return out;
}

void RequestScorer::score(const Request& request, float* scores) const {
  try {
    const RequestContext context = prepared(request.context);
    if (request.rows) score(context, request.candidates, request.rows, scores);
  } catch (const BadPart& e) {
    if (e.row < 0) throw BadRequest(e.what());
    throw BadRequest((e.of_context ? "context: " : "candidate " + std::to_string(e.row) + ": ") + e.what());
  }
}

std::optional<std::vector<float>> RequestScorer::answer(std::string_view body, std::string_view versions,
                                                        ContextCache& cache, RequestTimes* times) const {
  const auto found = plan_->candidates.read(body);
  if (!found || !found->rows || !shares_) return std::nullopt;
  std::string_view given = body.substr(found->context_begin, found->context_end - found->context_begin);
  if (given.empty()) given = "{}";
  std::string key;
  key.reserve(versions.size() + given.size());
  key.append(versions).append(given);
  const ContextCache::Value context = met(key, cache, times, [&] { return plan_->context.row(given); });
  if (!context) return std::nullopt;
  return scores_of(context, found->frame, found->rows, times);
}

std::optional<std::vector<float>> RequestScorer::answer(const std::vector<InputTensor>& tensors,
                                                        std::string_view versions, ContextCache& cache,
                                                        RequestTimes* times) const {
  if (!shares_) return std::nullopt;
  const RequestTensors reader(plan_->context, plan_->candidates);
  auto found = reader.read(tensors);
  if (!found) return std::nullopt;
  const std::string key = std::string(versions) + reader.key(*found);
  const ContextCache::Value context = met(key, cache, times, [&] { return reader.context(*found); });
  return scores_of(context, reader.candidates(*found), found->rows, times);
}

template <class Made>
ContextCache::Value RequestScorer::met(const std::string& key, ContextCache& cache, RequestTimes* times,
                                       Made made) const {
  ContextCache::Value value = cache.met(key);
  if (times) times->cached = static_cast<bool>(value);
  if (value) return value;
  const std::shared_ptr<Frame> row = made();
  lap(times, &RequestTimes::reading);
  if (!row) return {};
  cache.missed();
  const auto context = std::make_shared<const RequestContext>(prepared(row, times));
  value = {context, true};
  cache.put(key, value, key.size() + context->bytes());
  return value;
}

std::vector<float> RequestScorer::scores_of(const ContextCache::Value& context,
                                            const std::shared_ptr<Frame>& candidates, int64_t rows,
                                            RequestTimes* times) const {
  lap(times, &RequestTimes::reading);
  std::vector<float> scores(static_cast<size_t>(rows));
  score(*static_cast<const RequestContext*>(context.held.get()), candidates, scores.size(), scores.data(), times);
  return scores;
}

RequestContext RequestScorer::prepared(const std::shared_ptr<Frame>& context, RequestTimes* times) const {
  const RequestPlan& plan = *plan_;
  RequestContext out;
  try {
    auto once = run_batch(plan.once, piece_of(Frame::selected(context, plan.once.columns), plan.merged, 1));
    if (plan.shared) {
      const auto frame = Frame::selected(context, plan.shared->columns);
      FrameBuilder builder(plan.shared_kinds, plan.shared_nullable, {frame});
      plan.shared->program->run({piece_of(frame, plan.merged, 1)}, builder);
      out.frame = builder.frame()->compacted();
    }
    lap(times, &RequestTimes::plan);
    if (!shares_) {
      out.features = std::move(once);
      return out;
    }
    of_part(true, [&] {
      const Examples one = once_.examples(*once);
      model_->check_part(one, true);
      out.prepared = model_->context(one);
    });
    lap(times, &RequestTimes::engine);
    return out;
  } catch (const RowError& e) {
    throw BadPart(true, e.position, e.what());
  }
}

void RequestScorer::score(const RequestContext& context, const std::shared_ptr<Frame>& candidates, size_t rows,
                          float* scores, RequestTimes* times) const {
  const RequestPlan& plan = *plan_;
  const std::vector<int32_t> zeros(rows);  // every candidate reads the one row of the context
  Piece piece = piece_of(candidates, plan.merged, static_cast<int64_t>(rows));
  if (context.frame) piece.sources.push_back({context.frame.get(), zeros.data()});
  std::vector<int32_t> passed;
  const std::vector<int32_t>* index = nullptr;
  std::shared_ptr<Frame> kept;
  try {
    if (plan.each.filter) {
      std::vector<std::shared_ptr<const Frame>> keep{candidates};
      if (context.frame) keep.push_back(context.frame);
      FrameBuilder builder(plan.each.filter->kinds, plan.each.filter->nullable, std::move(keep));
      plan.each.filter->program->run({piece}, builder);
      kept = builder.frame();
      passed = builder.selected();
      index = &passed;
      piece.rows = static_cast<int64_t>(passed.size());
      piece.sources[0].index = passed.data();
      piece.sources.push_back({plan.each.filter->kinds.empty() ? nullptr : kept.get()});
    }
    const auto each = run_batch(plan.each, piece);
    lap(times, &RequestTimes::plan);
    score_parts(context, *each, scores, index);
    lap(times, &RequestTimes::engine);
  } catch (const RowError& e) {
    throw BadPart(false, index ? (*index)[static_cast<size_t>(e.position)] : e.position, e.what());
  }
  if (!index) return;
  // Behind each other at first; the last one moves first.
  for (size_t to = rows, from = passed.size(); to-- > 0;)
    scores[to] = from > 0 && static_cast<size_t>(passed[from - 1]) == to ? scores[--from]
                                                                         : std::numeric_limits<float>::quiet_NaN();
}

void RequestScorer::score_parts(const RequestContext& context, const Batch& candidates, float* scores,
                                const std::vector<int32_t>* index) const {
  std::optional<size_t> broken;
  of_part(false, [&] {
    if (context.features) {
      broken = model_->predict(joined_.examples(joined(*context.features, candidates)), scores, 1);
      return;
    }
    const Examples many = each_.examples(candidates);
    model_->check_part(many, false);
    broken = model_->score(context.prepared, many, scores);
  });
  if (broken)
    throw BadScore(*broken, "the score of candidate " + number_of(static_cast<int64_t>(*broken), index) +
                                " is not finite; check that no value is too large");
}

}  // namespace cb
