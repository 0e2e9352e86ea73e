// Fuzzes the reader of plans for requests: what it takes scores requests with the columns that it asks for. The
// programs of a forged file may be any; whatever they are, they touch their own memory alone.
#include "core/request/request_scorer.h"

#include <new>

#include "fuzz/fuzz.h"

using namespace cb;

namespace {

std::string value_of(const RequestRows::Column& column, size_t row) {
  static const char* const texts[] = {"\"\"", "\"red shoe\"", "null", "\"{\\\"a\\\": [1, 2.5]}\""};
  switch (column.kind) {
    case 'b':
      return row % 2 ? "true" : "false";
    case 's':
      return texts[row % std::size(texts)];
    case 't':
      return row % 3 ? "\"2024-02-29T12:00:00\"" : "null";
    case 'i':
      return row % 3 == 2 ? "null" : std::to_string(std::clamp(static_cast<int64_t>(row), column.low, column.high));
    default:
      return row % 3 == 2 ? "null" : "0.5";
  }
}

// A JSON text of any name may need escapes, which names must not have: such a request is refused, as it should be.
std::string object_of(const RequestRows& rows, size_t row) {
  std::string out = "{";
  for (const RequestRows::Column& column : rows.columns())
    out += (out.size() > 1 ? ", \"" : "\"") + column.name + "\": " + value_of(column, row);
  return out + "}";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::begin();
  static fuzz::MemoryFile file;
  const std::string& path = file.holding({reinterpret_cast<const char*>(data), size});
  try {
    const auto plan = RequestPlan::read(path);
    std::vector<std::string> fields;
    for (const std::vector<std::string>* names : {&plan->once.sparse, &plan->once.dense}) {
      fields.insert(fields.end(), names->begin(),
                    names->begin() + static_cast<ptrdiff_t>(std::min<size_t>(10, names->size())));
    }
    const size_t context = fields.size();
    for (const std::vector<std::string>* names : {&plan->each.sparse, &plan->each.dense})
      fields.insert(fields.end(), names->begin(),
                    names->begin() + static_cast<ptrdiff_t>(std::min<size_t>(10, names->size())));
    if (fields.empty()) return 0;
    FfmSettings s;
    s.fields = static_cast<uint32_t>(fields.size());
    s.context = data[size - 1] & 1 ? static_cast<uint32_t>(context) : 0;
    s.bits = 6;
    s.k = 1;
    const RequestScorer scorer(plan, std::make_shared<DeepFfm>(s), fields);
    std::string body = "{\"context\": " + object_of(plan->context, data[size - 1]) + ", \"candidates\": [";
    for (size_t row = 0; row < 5; ++row) body += (row ? ", " : "") + object_of(plan->candidates, row);
    const RequestScorer::Request request = scorer.read(body + "]}");
    fuzz::Heap heap;
    float* scores = heap.zeros<float>(request.rows);
    scorer.score(request, scores);
    fuzz::look_at(scores, request.rows * sizeof(float));
    ContextCache cache(1 << 20);
    for (int n = 0; n < 2; ++n)  // as the server does: computed, then from the cache
      if (const auto met = scorer.answer(body + "]}", "1 ", cache))
        fuzz::look_at(met->data(), met->size() * sizeof(float));
  } catch (const DamagedFile&) {
  } catch (const BadRequest&) {
  } catch (const BadScore&) {
  } catch (const BadPart&) {
  } catch (const std::invalid_argument&) {  // two features of one name
  } catch (const std::bad_alloc&) {         // operators that make long texts of long texts
  } catch (const std::length_error&) {
  }
  return 0;
}
