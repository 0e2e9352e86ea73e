// Plans for requests: a file gives the scores of the programs that were written, bit by bit and to many threads; a
// damaged file is refused, also one whose checksums are true; the C interface gives statuses and sentences.
#include "core/request/request_scorer.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "capi/ctrbox.h"
#include "core/ffm/model_file.h"
#include "core/program/lookup_tables.h"
#include "core/program/operator_tables.h"
#include "operators/hash.h"
#include "tests/check.h"

using namespace cb;

namespace {

const std::string kPath = "test_request_plan." + std::to_string(getpid()) + ".tmp";
const std::string kWeights = kPath + ".ffm";
const std::string kBody =
    R"({"context": {"user": 7, "query": "Red shoe"}, "candidates": [
      {"ad": 1, "price": 0.75, "title": "red hat", "at": "2024-05-01T10:00:00"},
      {"ad": 2, "price": 0.25, "title": "red", "at": 1714557600},
      {"ad": 9, "price": 3, "title": null, "at": 0},
      {"ad": 3, "price": 1.5, "title": "a \"blue\" one", "at": null}]})";

int call(Program& p, const std::string& name, const std::string& args, std::vector<int> in, const std::string& result,
         bool nullable, std::vector<int64_t> ints = {}, std::vector<std::string> texts = {},
         std::shared_ptr<Table> table = nullptr) {
  return p.call(name, args, in, {result}, {nullable}, ints, {}, texts, table, false)[0];
}

int64_t salt_of(const std::string& name) {
  return static_cast<int64_t>(hash_bytes(name.data(), static_cast<uint32_t>(name.size())));
}

// Ads 1 to 3 with a bid (that of 2 is null), a text and words; the fourth row stands for other ads.
JoinedRows ads() {
  auto records = std::make_shared<Records>(std::vector<RecordField>{{"f", true}, {"s", false}, {"*s", false}});
  double bids[] = {0.5, 0, 2.5, -1};
  uint8_t valid[] = {1, 0, 1, 1};
  Str topics[] = {{"shoes", 5}, {"", 0}, {"hats and coats", 14}, {"none", 4}};
  Str words[] = {{"red", 3}, {"shoe", 4}, {"blue", 4}};
  List<Str> lists[] = {{words, 2}, {nullptr, 0}, {words + 1, 2}, {nullptr, 0}};
  RecordSink sink(records);
  const Bump none;
  sink.begin(4);
  sink.take(0, {bids, valid}, none);
  sink.take(1, {topics, nullptr}, none);
  sink.take(2, {lists, nullptr}, none);
  sink.end();
  auto index = std::make_shared<Index>(size_t{3});
  for (uint32_t k = 0; k < 3; ++k) index->map.insert(hash_int(k + 1), records->handles()[k]);
  return {index, records};
}

// Prices of ads over time, for an as-of join.
JoinedRows prices() {
  auto records = std::make_shared<Records>(std::vector<RecordField>{{"f", false}});
  double values[] = {1, 2, 3, 0};
  RecordSink sink(records);
  sink.begin(4);
  sink.take(0, {values, nullptr}, Bump());
  sink.end();
  const uint64_t hashes[] = {hash_int(1), hash_int(1), hash_int(3)};
  const int64_t times[] = {0, 1'700'000'000'000'000, -5};
  HashIndex::Duplicate duplicate;
  auto index = std::make_shared<AsOfIndex>(hashes, times, false, 1, duplicate);
  index->renumber(records->handles());
  return {index, records};
}

std::shared_ptr<RequestPlan> plan() {
  auto out = std::make_shared<RequestPlan>();
  const int64_t low = INT64_MIN, high = INT64_MAX;
  out->context = RequestRows({{"user", 'i', low, high}, {"query", 's'}}, {"seen"}, 1);
  out->candidates = RequestRows({{"ad", 'i', low, high},
                                 {"price", 'f'},
                                 {"title", 's'},
                                 {"at", 't', -1'000'000'000, 9'000'000'000, false, 1'000'000}},
                                {"extra"}, 100);
  out->merged = 1;
  out->fingerprint = "fingerprint";
  out->views = {ads(), prices()};
  const int64_t missing = out->views[0].records->handles()[3];

  auto once = std::make_shared<Program>(8);
  const int user = once->load(0, 0, "i", false, "user");
  const int user_key =
      call(*once, "key", "k", {call(*once, "hash", "i", {user}, "k", false)}, "k", false, {salt_of("user")});
  once->emit(0, user_key);
  once->finish();
  out->once.columns = {0};
  out->once.slots = {{BatchSlot::What::Keys, "k"}};
  out->once.names = {"user"};
  out->once.program = once;

  auto shared = std::make_shared<Program>(8);
  const int query = shared->load(0, 0, "s", true, "query");
  const int lower = call(*shared, "lower", "s", {query}, "s", true);
  const int words =
      call(*shared, "hash", "*s", {call(*shared, "split", "s", {lower}, "*s", true, {}, {" "})}, "*k", true);
  shared->emit(0, words);
  shared->emit(1, lower);
  shared->finish();
  out->shared.emplace();
  out->shared->columns = {1};
  out->shared->program = shared;
  out->shared_kinds = {"*k", "s"};
  out->shared_nullable = {true, true};

  auto filter = std::make_shared<Program>(8);
  const int price = filter->load(0, 1, "f", true, "price");
  const int least = filter->literal("f", 0, 0.5, "");
  const int ad_hash = call(*filter, "hash", "i", {filter->load(0, 0, "i", false, "ad")}, "k", false);
  const int row = filter->lookup(std::static_pointer_cast<Index>(out->views[0].index), ad_hash, missing);
  filter->emit(FrameBuilder::kMask, call(*filter, "gt", "f,f", {price, least}, "b", true));
  filter->emit(0, row);
  filter->emit(1, ad_hash);
  filter->finish();
  out->each.filter = {filter, {"i", "k"}, {false, false}};

  auto each = std::make_shared<Program>(8);
  const int kept_row = each->load(3, 0, "i", false, "row"), kept_hash = each->load(3, 1, "k", false, "hash");
  const int asked = each->load(2, 0, "*k", true, "given"), text = each->load(2, 1, "s", true, "given");
  const std::vector<int> ad = each->gather(out->views[0].records, kept_row, {0, 1, 2});
  const int at = each->load(0, 3, "t", true, "at");
  const int then = each->lookup_as_of(std::static_pointer_cast<AsOfIndex>(out->views[1].index), kept_hash, at,
                                      out->views[1].records->handles()[3]);
  const int paid = each->gather(out->views[1].records, then, {0})[0];
  const int title = each->load(0, 2, "s", true, "title");
  const int fallback = each->literal("s", 0, 0, "none"), zero = each->literal("f", 0, 0.0, "");
  const int bid = call(*each, "fill", "f,f", {ad[0], zero}, "f", false);
  const int merged = each->load(1, 0, "i", true, "score"), seven = each->literal("i", 7, 0, "");
  const auto dictionary =
      std::make_shared<Dictionary>(std::vector<uint64_t>{hash_int(1), 5, hash_int(3)}, std::vector<int64_t>{},
                                   std::vector<double>{1, 2, 3, 4, 5, 6}, 2);
  const auto ids = std::make_shared<Dictionary>(std::vector<uint64_t>{hash_int(3), hash_int(1), hash_int(3)},
                                                std::vector<int64_t>{8, 9, 10}, std::vector<double>{}, 0);
  const auto clicks = std::make_shared<History>(std::vector<uint64_t>{hash_int(1), hash_int(1), hash_int(3)},
                                                std::vector<int64_t>{-5, 19'000, 3}, std::vector<int64_t>{4, 5, 6},
                                                std::vector<int64_t>{1, 0, 2});
  const auto json =
      std::make_shared<JsonPaths>(std::vector<std::string>{"$.a", "$['b'][1]"}, std::vector<std::string>{"i", "*f"});
  std::vector<std::string> many;
  for (int k = 0; k < 20; ++k) many.push_back("red" + std::string(static_cast<size_t>(k), '!'));
  each->emit(0, call(*each, "key", "k", {kept_hash}, "k", false, {salt_of("ad")}));
  const int list = call(*each, "hash", "*s", {ad[2]}, "*k", false);
  each->emit(1, call(*each, "key", "*k", {call(*each, "cross", "*k,*k", {list, asked}, "*k", true, {100})}, "*k", true,
                     {salt_of("words_x_query")}));
  const int topic =
      call(*each, "concat", "s,s", {ad[1], call(*each, "fill", "s,s", {title, fallback}, "s", false)}, "s", false);
  each->emit(2,
             call(*each, "key", "k", {call(*each, "hash", "s", {topic}, "k", false)}, "k", false, {salt_of("topic")}));
  each->emit(3, bid);
  each->emit(4, paid);
  each->emit(5, call(*each, "is_in", "s", {title}, "b", true, {}, {}, std::make_shared<StrSet>(many)));
  each->emit(6, call(*each, "dictionary_vector", "k", {kept_hash}, "*f", false, {}, {}, dictionary));
  each->emit(7, call(*each, "dictionary_id", "k", {kept_hash}, "i", false, {-1}, {}, ids));
  each->emit(8, call(*each, "history_shows", "k,t", {kept_hash, at}, "i", true, {86'400'000'000, 0}, {}, clicks));
  each->emit(9, call(*each, "is_in", "i", {call(*each, "fill", "i,i", {merged, seven}, "i", false)}, "b", false, {}, {},
                     std::make_shared<IntSet>(std::vector<int64_t>{7, 8, 9, 10, 11, 12, 13, 14, 15, 16})));
  each->emit(10, call(*each, "bucketize", "f", {bid}, "i", false, {}, {},
                      std::make_shared<Boundaries>(std::vector<double>{-1, 0, 2})));
  const std::vector<int> found = each->call("json", "s", {text}, {"i", "*f"}, {true, true}, {}, {}, {}, json, false);
  each->emit(11, call(*each, "is_null", "i", {found[0]}, "b", false));
  each->emit(12, found[1]);
  each->finish();
  out->each.columns = {0, 1, 2, 3};
  out->each.program = each;
  const auto keys = BatchSlot::What::Keys, dense = BatchSlot::What::Dense;
  out->each.slots = {{keys, "k"},  {keys, "*k"},        {keys, "k"},        {dense, "f"}, {dense, "f"},
                     {dense, "b"}, {dense, "*f", 0, 2}, {dense, "i"},       {dense, "i"}, {dense, "b"},
                     {dense, "i"}, {dense, "b"},        {dense, "*f", 0, 3}};
  out->each.names = {"ad",     "words_x_query", "topic", "bid",    "paid", "red",  "vector",
                     "number", "shows",         "seven", "bucket", "none", "array"};
  for (RequestPart* part : {&out->once, &out->each}) part->name_features();
  return out;
}

std::vector<std::string> fields_of(const RequestPlan& p, bool context) {
  std::vector<std::string> out;
  const std::vector<std::string>* all[] = {&p.once.sparse, &p.once.dense, &p.each.sparse, &p.each.dense};
  for (size_t k = context ? 0 : 2; k < (context ? 2u : 4u); ++k) out.insert(out.end(), all[k]->begin(), all[k]->end());
  return out;
}

struct Model {
  explicit Model(const RequestPlan& p, bool shares = true) : fields(fields_of(p, true)) {
    const size_t context = fields.size();
    for (const std::string& name : fields_of(p, false)) fields.push_back(name);
    FfmSettings s;
    s.fields = static_cast<uint32_t>(fields.size());
    s.context = shares ? static_cast<uint32_t>(context) : 0;
    s.bits = 10;
    s.hidden = {4, 3};
    ffm = std::make_shared<DeepFfm>(s);
    for (size_t i = 0; i < ffm->layout().dense; ++i) ffm->dense()[i] += 0.01f;
    ffm->changed();
    save_ffm(kWeights, *ffm, FfmHead{s, fields, 7});
  }
  std::vector<std::string> fields;
  std::shared_ptr<DeepFfm> ffm;
};

std::vector<float> scores(const RequestScorer& scorer, const std::string& body) {
  const RequestScorer::Request request = scorer.read(body);
  std::vector<float> out(request.rows);
  scorer.score(request, out.data());
  return out;
}

std::string bytes_of(const std::vector<float>& found) {
  std::string out(found.size() * sizeof(float), '\0');
  if (!found.empty()) std::memcpy(out.data(), found.data(), out.size());
  return out;
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

void store(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

void a_file_gives_the_bits_of_what_was_written() {
  const auto made = plan();
  made->write(kPath);
  const auto read = RequestPlan::read(kPath);
  CHECK(read->fingerprint == "fingerprint" && read->candidates.columns().size() == 4);
  for (bool shares : {true, false}) {
    const Model model(*made, shares);
    const RequestScorer first(made, model.ffm, model.fields), again(read, model.ffm, model.fields);
    const std::vector<float> expected = scores(first, kBody), met = scores(again, kBody);
    CHECK(expected.size() == 4 && bytes_of(expected) == bytes_of(met));
    // The filter drops the second one; the others are probabilities, and not all the same.
    CHECK(std::isnan(met[1]) && met[0] > 0 && met[0] < 1 && met[0] != met[2] && met[2] != met[3]);
    CHECK(scores(again, R"({"candidates": [], "context": {"user": 1, "query": null}})").empty());
    std::vector<std::string> all(4);
    std::vector<std::thread> threads;
    for (std::string& one : all)
      threads.emplace_back([&] {
        for (int k = 0; k < 20; ++k) one = bytes_of(scores(again, kBody));
      });
    for (std::thread& t : threads) t.join();
    for (const std::string& one : all) CHECK(one == bytes_of(expected));
  }
  // A model without some of the features, among them one column of a vector.
  Model some(*made);
  some.fields.resize(6);
  FfmSettings s = some.ffm->settings();
  s.fields = 6;
  some.fields[5] = "vector.1";
  const auto smaller = std::make_shared<DeepFfm>(s);
  CHECK(bytes_of(scores({made, smaller, some.fields}, kBody)) == bytes_of(scores({read, smaller, some.fields}, kBody)));
  // Written again, the file is the same: what was read can itself be written.
  bool refused = false;
  try {
    RequestScorer(read, smaller, {"user", "ad", "none such", "bid", "paid", "red"});
  } catch (const std::invalid_argument& e) {
    refused = std::string(e.what()).find("none such") != std::string::npos;
  }
  CHECK(refused);
}

// The server's call: the bits of `score` with a full cache, a small one and none, from many threads at once.
void answers_with_a_cache_have_the_bits_of_those_without() {
  const auto made = plan();
  const Model model(*made);
  const RequestScorer scorer(made, model.ffm, model.fields);
  std::vector<std::string> bodies, expected;
  for (int user = 0; user < 12; ++user) {
    bodies.push_back(kBody);
    bodies.back().replace(bodies.back().find("7,"), 1, std::to_string(user));
    expected.push_back(bytes_of(scores(scorer, bodies.back())));
  }
  for (const uint64_t budget : {0u, 24u << 10, 1u << 20}) {
    ContextCache cache(budget, 16u << 10);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        std::mt19937 draw(static_cast<unsigned>(t));
        for (int n = 0; n < 100; ++n) {
          const size_t k = draw() % bodies.size();
          const auto met = scorer.answer(bodies[k], "version 1 ", cache);
          CHECK(met && bytes_of(*met) == expected[k]);
        }
      });
    for (std::thread& t : threads) t.join();
    const ContextCache::Counts counts = cache.counts();
    CHECK(counts.hits + counts.misses == 400 && cache.bytes() <= budget);
    CHECK(budget ? counts.hits > 0 && cache.size() > 0 : counts.misses == 400);
    CHECK(budget == 24u << 10 ? counts.evictions > 0 : counts.evictions == 0);
  }
  ContextCache cache(1 << 20);
  // A request that is left to the slow path is neither counted nor kept in the cache.
  for (const std::string body :
       {std::string(), kBody + "x",
        std::string(R"({"context": {"user": 1}, "candidates": [)") + kBody.substr(kBody.find(R"({"ad": 1)"))})
    CHECK(!scorer.answer(body, "", cache));
  CHECK(cache.size() == 0 && cache.counts().misses == 0);
  // Other versions are other contexts.
  CHECK(scorer.answer(kBody, "1 ", cache) && scorer.answer(kBody, "2 ", cache));
  CHECK(cache.size() == 2 && cache.counts().hits == 0);
  // A context with a null is refused before the cache keeps it; a wrong candidate does not take the context with it.
  const auto refused = [&](const std::string& from, const std::string& to, bool of_context, int64_t row) {
    std::string body = kBody;
    body.replace(body.find(from), from.size(), to);
    try {
      scorer.answer(body, "3 ", cache);
    } catch (const BadPart& e) {
      return e.of_context == of_context && e.row == row;
    }
    return false;
  };
  CHECK(refused("7", "null", true, 0) && cache.size() == 2);
  CHECK(refused(R"("ad": 9)", R"("ad": null)", false, 2) && cache.size() == 3);
  // A model that works out no context is left to the slow path.
  const Model whole(*made, false);
  CHECK(!RequestScorer(made, whole.ffm, whole.fields).answer(kBody, "", cache));
}

void wrong_requests_say_why() {
  const auto made = plan();
  const Model model(*made);
  const RequestScorer scorer(made, model.ffm, model.fields);
  const std::string once = R"("context": {"user": 1, "query": "a"})",
                    good = R"({"ad": 1, "price": 1, "title": "", "at": 0})";
  const std::pair<std::string, std::string> wrong[] = {
      {"", "expected an object with context and candidates at byte 0, where the request ends"},
      {"[1]", "expected an object with context and candidates at byte 0, met [1]"},
      {"{" + once + "}", "the request has no candidates"},
      {"{" + once + R"(, "score": "x", "candidates": []})", "no 'score'"},
      {"{" + once + ", " + once + R"(, "candidates": []})", "'context' occurs twice"},
      {"{" + once + R"(, "candidates": [{"ad": 1}]})", "candidates: column 'price' is missing"},
      {"{" + once + R"(, "candidates": [)" + good + R"(, {"ad": "1"}]})",
       "row 1: column 'ad' must be a whole number from"},
      {"{" + once + R"(, "candidates": [)" + good + R"(, {"ad": 1}]})", "row 1 lacks column 'price'"},
      {"{" + once + R"(, "candidates": [)" + good + R"(, {"price": 1}]})", "where row 0 has another one"},
      {"{" + once + R"(, "candidates": [{"ad": 1, "adds": 2}]})", "there is no column 'adds' here"},
      {"{" + once + R"(, "candidates": [{"ad": 1, "ad": 2}]})", "column 'ad' occurs twice"},
      {"{" + once + R"(, "candidates": {"ad": [1, 2], "price": [1]}})", "'ad' has 2 values, but column 'price' has 1"},
      {"{" + once + R"(, "candidates": [)" + good, "expected a comma or the end of the list"},
      {"{" + once + R"(, "candidates": []} x)", "nothing behind the request"},
      {R"({"candidates": []})", "context: column 'user' is missing"},
      {R"({"context": {"user": 1.5, "query": ""}, "candidates": []})", "context: row 0: column 'user' must be a whole"},
      {R"({"context": {"user": null, "query": ""}, "candidates": []})", "context: column 'user' is null"},
      {"{" + once + R"(, "candidates": [)" + good + R"(, {"ad": null, "price": 1, "title": "", "at": 0}]})",
       "candidate 1: column 'ad' is null"},
      {"{" + once + R"(, "candidates": [{"ad": 1, "price": 1e400, "title": "", "at": 0}]})", "fits float64"},
      {"{" + once + R"(, "candidates": [{"ad": 1, "price": 1, "title": ")" + "\xff" + R"(", "at": 0}]})",
       "string of UTF-8"},
      {"{" + once + R"(, "candidates": [{"ad": 1, "price": 1, "title": "", "at": "noon"}]})", "must be a time"}};
  for (const auto& [body, said] : wrong) {
    std::string met;
    try {
      scores(scorer, body);
    } catch (const BadRequest& e) {
      met = e.what();
    }
    if (met.find(said) == std::string::npos) std::fprintf(stderr, "%s: %s\n", body.c_str(), met.c_str());
    CHECK(met.find(said) != std::string::npos);
  }
}

bool read_refused(const std::string& bytes) {
  store(kPath, bytes);
  try {
    RequestPlan::read(kPath);
  } catch (const DamagedFile& e) {
    return *e.what() != 0;
  }
  return false;
}

void damaged_files_are_refused() {
  plan()->write(kPath);
  const std::string whole = contents(kPath);
  for (size_t n = 0; n < whole.size(); n += 1 + n / 40) CHECK(read_refused(whole.substr(0, n)));
  CHECK(read_refused(whole + "x"));
  std::mt19937 draw(1);
  for (size_t n = 0; n < whole.size(); n += 1 + draw() % 8) {
    std::string flipped = whole;
    flipped[n] = static_cast<char>(flipped[n] ^ (1 << draw() % 8));
    CHECK(read_refused(flipped));
  }
}

// The checksums of both blocks, made true.
std::string sealed(std::string bytes, size_t head) {
  Checksum sum;
  sum.add(bytes.data(), head);
  uint64_t value = sum.value();
  std::memcpy(bytes.data() + head, &value, 8);
  sum.restart(value);
  sum.add(bytes.data() + head + 8, bytes.size() - head - 16);
  value = sum.value();
  std::memcpy(bytes.data() + bytes.size() - 8, &value, 8);
  return bytes;
}

// Whatever somebody writes into a file with true checksums: it is refused, or gives scores or a sentence.
void forged_files_do_no_harm() {
  const auto made = plan();
  made->write(kPath);
  const std::string whole = contents(kPath);
  size_t head = 16;
  for (Checksum sum; head + 8 < whole.size(); ++head) {
    sum.restart(0);
    sum.add(whole.data(), head);
    const uint64_t value = sum.value();
    if (std::memcmp(whole.data() + head, &value, 8) == 0) break;
  }
  CHECK(sealed(whole, head) == whole);
  const Model model(*made);
  std::mt19937 draw(2);
  size_t refused = 0, scored = 0;
  for (int n = 0; n < 1500; ++n) {
    std::string forged = whole;
    for (uint32_t k = draw() % 3 + 1; k > 0; --k) {
      const size_t at = 12 + draw() % (forged.size() - 20);
      if (at >= head && at < head + 8) continue;
      const uint8_t some[] = {0, 1, 2, 3, 5, 8, 127, 128, 255, static_cast<uint8_t>(draw())};
      forged[at] = static_cast<char>(draw() % 2 ? some[draw() % std::size(some)] : forged[at] + 1);
    }
    store(kPath, sealed(forged, head));
    try {
      const RequestScorer scorer(RequestPlan::read(kPath), model.ffm, model.fields);
      scores(scorer, kBody);
      ++scored;
    } catch (const DamagedFile&) {
      ++refused;
    } catch (const BadRequest&) {
    } catch (const BadScore&) {
    } catch (const std::invalid_argument&) {  // a feature has another name
    } catch (const std::bad_alloc&) {
    }
  }
  CHECK(refused > 300 && scored > 100);
}

bool said(ctrbox_status met, ctrbox_status expected, const char* words = "") {
  const bool fits = met == expected && (met == CTRBOX_OK || std::strstr(ctrbox_last_error(), words));
  if (!fits) std::fprintf(stderr, "status %d: %s\n", met, ctrbox_last_error());
  return fits;
}

void the_c_interface_scores_and_refuses() {
  const auto made = plan();
  made->write(kPath);
  const Model model(*made);
  const std::vector<float> expected = scores({made, model.ffm, model.fields}, kBody);
  ctrbox_scorer *scorer = nullptr, *other = nullptr;
  CHECK(said(ctrbox_scorer_open(kPath.c_str(), kWeights.c_str(), &scorer), CTRBOX_OK));
  CHECK(ctrbox_scorer_learned(scorer) == 7 && std::string(ctrbox_scorer_fingerprint(scorer)) == "fingerprint");
  CHECK(ctrbox_scorer_columns(scorer, 1) == 2 && ctrbox_scorer_columns(scorer, 0) == 4);
  char kind = 0;
  CHECK(std::string(ctrbox_scorer_column(scorer, 0, 3, &kind)) == "at" && kind == 't');
  CHECK(!ctrbox_scorer_column(scorer, 0, 4, &kind) && !ctrbox_scorer_column(nullptr, 0, 0, nullptr));
  std::vector<float> met(4);
  size_t rows = 0;
  auto json = [&](const ctrbox_scorer* of, const std::string& body, size_t capacity) {
    return ctrbox_scorer_json(of, body.data(), body.size(), met.data(), capacity, &rows);
  };
  CHECK(said(json(scorer, kBody, 3), CTRBOX_BAD_ARGUMENT, "room for 3") && rows == 4);
  CHECK(said(json(scorer, kBody, 4), CTRBOX_OK) && rows == 4 && bytes_of(met) == bytes_of(expected));
  CHECK(said(json(scorer, "{}", 4), CTRBOX_BAD_ARGUMENT, "candidates") && rows == 0);
  CHECK(said(json(nullptr, kBody, 4), CTRBOX_BAD_ARGUMENT, "scorer is NULL"));
  CHECK(said(ctrbox_scorer_json(scorer, nullptr, 5, met.data(), 4, &rows), CTRBOX_BAD_ARGUMENT, "body is NULL"));
  CHECK(said(ctrbox_scorer_json(scorer, nullptr, 0, nullptr, 0, &rows), CTRBOX_BAD_ARGUMENT, "where the request ends"));
  CHECK(said(ctrbox_scorer_json(scorer, "{}", 2, nullptr, 1, &rows), CTRBOX_BAD_ARGUMENT, "scores is NULL"));
  CHECK(said(ctrbox_scorer_json(scorer, "{}", 2, met.data(), 4, nullptr), CTRBOX_BAD_ARGUMENT, "rows is NULL"));
  // Other weights for the same plan; the first scorer goes first.
  CHECK(said(ctrbox_scorer_with(scorer, kWeights.c_str(), &other), CTRBOX_OK));
  ctrbox_scorer_close(scorer);
  met.assign(4, 0);
  CHECK(said(json(other, kBody, 4), CTRBOX_OK) && bytes_of(met) == bytes_of(expected));
  CHECK(said(ctrbox_scorer_with(other, "none", &scorer), CTRBOX_CANNOT_READ, "none") && !scorer);
  CHECK(said(ctrbox_scorer_with(nullptr, "none", &scorer), CTRBOX_BAD_ARGUMENT, "of is NULL"));
  ctrbox_scorer_close(other);
  ctrbox_scorer_close(nullptr);
  CHECK(said(ctrbox_scorer_open("none", kWeights.c_str(), &scorer), CTRBOX_CANNOT_READ, "none") && !scorer);
  CHECK(said(ctrbox_scorer_open(kWeights.c_str(), kWeights.c_str(), &scorer), CTRBOX_DAMAGED, "not a request plan"));
  CHECK(said(ctrbox_scorer_open(kPath.c_str(), kPath.c_str(), &scorer), CTRBOX_DAMAGED, kPath.c_str()));
  CHECK(said(ctrbox_scorer_open(nullptr, kPath.c_str(), &scorer), CTRBOX_BAD_ARGUMENT, "plan is NULL"));
  // A model of other features.
  FfmSettings s;
  s.fields = 2;
  s.bits = 8;
  save_ffm(kWeights, DeepFfm(s), FfmHead{s, {"user", "elsewhere"}, 0});
  CHECK(said(ctrbox_scorer_open(kPath.c_str(), kWeights.c_str(), &scorer), CTRBOX_BAD_ARGUMENT, "elsewhere"));
}

}  // namespace

int main() {
  a_file_gives_the_bits_of_what_was_written();
  answers_with_a_cache_have_the_bits_of_those_without();
  wrong_requests_say_why();
  damaged_files_are_refused();
  forged_files_do_no_harm();
  the_c_interface_scores_and_refuses();
  std::remove(kPath.c_str());
  std::remove(kWeights.c_str());
}
