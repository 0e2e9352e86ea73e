// Images of tables and records answer as the originals do. An image is written in one place for another, copied there,
// and read after the original is gone: a pointer left as it was is a use after free, which the address sanitizer sees.
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/join/device_image.h"
#include "core/program/lookup_tables.h"
#include "core/program/operator_tables.h"
#include "core/program/program.h"
#include "core/program/result_sinks.h"
#include "tests/check.h"

using namespace cb;

namespace {

struct Image {
  template <class T>
  explicit Image(const T& table)
      : bytes(table.image_bytes()), memory(static_cast<char*>(std::aligned_alloc(16, bytes))) {
    CHECK(bytes % 16 == 0 && bytes >= 16);
    std::vector<char> staged(bytes, 0x55);
    table.image(staged.data(), reinterpret_cast<uint64_t>(memory));
    std::memcpy(memory, staged.data(), bytes);
    for (size_t k = bytes - 16; k < bytes; ++k) CHECK(memory[k] == 0);
  }
  ~Image() { std::free(memory); }
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  // nullptr, or n elements on a 16-byte boundary with 16 bytes behind them.
  template <class T>
  bool holds(const T* p, size_t n) const {
    if (!p) return true;
    const uintptr_t at = reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(memory);
    return at % 16 == 0 && at + n * sizeof(T) + 16 <= bytes;
  }
  template <class View>
  const View& view() const {
    return *reinterpret_cast<const View*>(memory);
  }

  size_t bytes;
  char* memory;
};

// answer(view) over the table, then over its image when the table is gone; check(image) sees the pointers.
template <class View, class T, class Answer, class Check>
void image_answers_alike(std::unique_ptr<T> table, Answer answer, Check check) {
  const auto expected = answer(*static_cast<const View*>(table->view()));
  Image image(*table);
  table.reset();
  check(image, image.view<View>());
  CHECK(answer(image.view<View>()) == expected);
}

template <class View>
Params with(const View& view) {
  Params q{};
  q.table = &view;
  return q;
}

using Random = std::mt19937_64;

int64_t number(Random& random, int64_t below) { return static_cast<int64_t>(random() % static_cast<uint64_t>(below)); }

std::string text(Random& random, size_t longest) {
  std::string s(static_cast<size_t>(number(random, static_cast<int64_t>(longest) + 1)), ' ');
  for (char& c : s) c = static_cast<char>(random() % 4 ? 'a' + random() % 3 : random());
  return s;
}

Str str(const std::string& s) { return {s.data(), static_cast<uint32_t>(s.size())}; }

// Sizes around the change from a list of members to a table.
constexpr size_t kSizes[] = {0, 1, 2, 8, 9, 100, 3000};

// ---- sets and boundaries --------------------------------------------------------------------------------------------

void sets_of_ints() {
  Random random(1);
  for (size_t size : kSizes) {
    std::vector<int64_t> members(size);
    for (int64_t& m : members) m = random() % 3 ? number(random, 5000) - 100 : static_cast<int64_t>(random());
    auto answer = [&](const IntSetView& view) {
      std::vector<int64_t> out;
      for (int64_t x = -200; x < 6000; ++x) out.push_back(IntIsIn::apply(with(view), x));
      for (int64_t x : members) out.push_back(IntIsIn::apply(with(view), x));
      return out;
    };
    image_answers_alike<IntSetView>(std::make_unique<IntSet>(members), answer,
                                    [](const Image& image, const IntSetView& v) {
                                      CHECK(image.holds(v.slots, v.mask ? v.mask + 1 : v.n));
                                      CHECK(v.n > 0 || !v.slots);
                                    });
  }
}

void sets_of_floats() {
  Random random(2);
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (size_t size : kSizes) {
    std::vector<double> members = {-0.0, inf, nan};
    members.resize(size);
    for (size_t k = 3; k < size; ++k) members[k] = static_cast<double>(number(random, 4000)) / 8;
    auto answer = [&](const IntSetView& view) {
      std::vector<int64_t> out;
      for (double x : {0.0, -0.0, inf, -inf, nan}) out.push_back(FloatIsIn::apply(with(view), x));
      for (int k = 0; k < 5000; ++k) out.push_back(FloatIsIn::apply(with(view), k / 8.0));
      return out;
    };
    image_answers_alike<IntSetView>(std::make_unique<FloatSet>(members), answer,
                                    [](const Image&, const IntSetView&) {});
  }
}

void sets_of_strings() {
  Random random(3);
  for (size_t size : kSizes) {
    std::vector<std::string> members(size), others;
    for (std::string& m : members) m = text(random, size == 2 ? 0 : 20);  // 2: nothing but the empty string
    for (int k = 0; k < 2000; ++k) others.push_back(text(random, 20));
    auto answer = [&](const StrSetView& view) {
      std::vector<int64_t> out;
      for (const auto* list : {&members, &others})
        for (const std::string& s : *list) out.push_back(StrIsIn::apply(with(view), str(s)));
      return out;
    };
    image_answers_alike<StrSetView>(std::make_unique<StrSet>(members), answer,
                                    [](const Image& image, const StrSetView& v) {
                                      CHECK(image.holds(v.slots, v.mask ? v.mask + 1 : v.n));
                                      size_t bytes = 0;
                                      for (size_t k = 0; k < (v.mask ? v.mask + size_t{1} : v.n); ++k)
                                        bytes += v.slots[k].n;
                                      CHECK(image.holds(v.bytes, bytes));
                                    });
  }
}

void boundaries() {
  Random random(4);
  const double inf = std::numeric_limits<double>::infinity();
  for (size_t size : kSizes) {
    std::vector<double> points(size);
    double at = -300;
    for (double& p : points) p = at += static_cast<double>(number(random, 3));
    auto answer = [&](const BoundariesView& view) {
      std::vector<int64_t> out;
      for (double x : {-inf, inf, std::numeric_limits<double>::quiet_NaN()})
        out.push_back(Bucketize::apply(with(view), x));
      for (int k = -1000; k < 8000; ++k) out.push_back(Bucketize::apply(with(view), k / 2.0));
      return out;
    };
    image_answers_alike<BoundariesView>(std::make_unique<Boundaries>(points), answer,
                                        [](const Image& image, const BoundariesView& v) {
                                          CHECK(image.holds(v.p, v.n));
                                          CHECK(v.n > 0 || !v.p);
                                        });
  }
}

// ---- JSON -----------------------------------------------------------------------------------------------------------

void json_paths() {
  const std::string documents[] = {
      R"({"a": 1, "b": [1, {"c": "x\ty"}, 3], "a key of some length": {"d": [true]}})",
      R"({"b": [], "a": null, "a key of some lengths": 2, "a key of some length": {"d": false, "d": 7}})",
      R"(["top", 2, {"a": "é"}])",
      R"("text")",
      R"({"a": )",
      "",
  };
  auto answer = [&](const JsonPathsView& view) {
    std::vector<std::string> out(1);
    for (uint32_t k = 0; k < view.n; ++k) out[0] += static_cast<char>(view.kinds[k]);
    for (const std::string& document : documents) {
      JsonSlice slots[kJsonPaths];
      const bool good = JsonScan::scan(view, str(document), slots);
      out.push_back(good ? "good" : "bad");
      for (uint32_t k = 0; good && k < view.n; ++k)
        out.push_back(slots[k].type == kJsonMissing ? "-" : std::string(slots[k].p, slots[k].n));
    }
    return out;
  };
  auto check = [](const Image& image, const JsonPathsView& v) {
    CHECK(v.nodes && image.holds(v.nodes, 2) && image.holds(v.edges, 0) && image.holds(v.keys, 0));
    CHECK(v.kinds && image.holds(v.kinds, v.n));
  };
  using Texts = std::vector<std::string>;
  // $ alone has no edge and no key.
  image_answers_alike<JsonPathsView>(std::make_unique<JsonPaths>(Texts{"$"}, Texts{"s"}), answer, check);
  const Texts paths = {"$", "$.a", "$.b[1].c", "$['a key of some length'].d", "$.b", "$[2].a", "$[0]"};
  image_answers_alike<JsonPathsView>(std::make_unique<JsonPaths>(paths, Texts{"s", "i", "s", "*s", "*i", "f", "b"}),
                                     answer, check);
  Texts many, kinds;
  for (uint32_t k = 0; k < kJsonPaths; ++k) {
    many.push_back(k % 2 ? "$.a" : "$.b[" + std::to_string(k) + "]");
    kinds.push_back(k % 3 ? "*f" : "f");
  }
  image_answers_alike<JsonPathsView>(std::make_unique<JsonPaths>(many, kinds), answer, check);
}

// ---- look-ups -------------------------------------------------------------------------------------------------------

std::vector<uint64_t> hashes_of(Random& random, size_t n) {
  std::vector<uint64_t> hashes(n);
  for (uint64_t& h : hashes) h = random() % 4 ? random() : random() % 50;  // some of them equal
  return hashes;
}

// What is asked of a table: its own hashes and strangers.
std::vector<uint64_t> asked(Random& random, const std::vector<uint64_t>& hashes) {
  std::vector<uint64_t> out = hashes;
  for (int k = 0; k < 500; ++k) out.push_back(random() % 2 ? random() : random() % 100);
  return out;
}

void dictionaries_of_ids() {
  Random random(5);
  for (size_t size : kSizes) {
    const std::vector<uint64_t> hashes = hashes_of(random, size), questions = asked(random, hashes);
    std::vector<int64_t> ids(size);
    for (int64_t& id : ids) id = static_cast<int64_t>(random());
    auto answer = [&](const DictionaryView& view) {
      std::vector<int64_t> out;
      Params q = with(view);
      q.i[0] = -7;
      for (uint64_t h : questions) {
        int64_t id = 0;
        const bool known = DictionaryMaybeId::apply(q, &id, h);
        out.insert(out.end(), {DictionaryId::apply(q, h), known, known ? id : 0});
      }
      return out;
    };
    image_answers_alike<DictionaryView>(std::make_unique<Dictionary>(hashes, ids, std::vector<double>{}, 0), answer,
                                        [&](const Image& image, const DictionaryView& v) {
                                          CHECK(image.holds(v.index.slots, v.index.mask + 1) && v.index.slots);
                                          CHECK(image.holds(v.ids, size) && (v.ids != nullptr) == (size > 0));
                                          CHECK(!v.vectors);
                                        });
  }
}

void dictionaries_of_vectors() {
  Random random(6);
  for (uint32_t width : {0u, 1u, 5u})
    for (size_t size : kSizes) {
      const std::vector<uint64_t> hashes = hashes_of(random, size), questions = asked(random, hashes);
      std::vector<double> vectors(size * width);
      for (double& x : vectors) x = static_cast<double>(number(random, 1000)) / 7;
      auto answer = [&](const DictionaryView& view) {
        std::vector<double> out;
        for (uint64_t h : questions) {
          const List<double> found = DictionaryVector::apply(with(view), h);
          out.push_back(found.n);
          out.insert(out.end(), found.p, found.p + found.n);
        }
        return out;
      };
      image_answers_alike<DictionaryView>(std::make_unique<Dictionary>(hashes, std::vector<int64_t>{}, vectors, width),
                                          answer, [&](const Image& image, const DictionaryView& v) {
                                            CHECK(!v.ids && image.holds(v.vectors, vectors.size()));
                                          });
    }
}

void histories() {
  Random random(7);
  for (size_t keys : {size_t{0}, size_t{1}, size_t{40}, size_t{900}}) {
    std::vector<uint64_t> hashes, questions;
    std::vector<int64_t> buckets, shows, clicks;
    uint64_t hash = 0;
    for (size_t k = 0; k < keys; ++k) {
      questions.push_back(hash += 1 + random() % (uint64_t{1} << 50));
      int64_t bucket = -5;
      for (int64_t n = number(random, 6); n >= 0; --n) {
        hashes.push_back(hash);
        buckets.push_back(bucket += 1 + number(random, 3));
        shows.push_back(number(random, 100));
        clicks.push_back(number(random, 10));
      }
    }
    questions.push_back(random());
    auto answer = [&](const HistoryView& view) {
      std::vector<double> out;
      Params q = with(view);
      q.i[0] = 1000;
      q.f[0] = 0.1;
      for (int64_t window : {0, 3}) {
        q.i[1] = window;
        q.f[1] = window ? 20.0 : 0.0;
        for (uint64_t h : questions)
          for (int64_t time = -6500; time < 25000; time += 777) {
            out.push_back(HistoryRate::apply(q, h, time));
            out.push_back(static_cast<double>(HistoryShows::apply(q, h, time)));
            out.push_back(static_cast<double>(HistoryClicks::apply(q, h, time)));
          }
      }
      return out;
    };
    const size_t rows = hashes.size();
    image_answers_alike<HistoryView>(std::make_unique<History>(hashes, buckets, shows, clicks), answer,
                                     [&](const Image& image, const HistoryView& v) {
                                       CHECK(image.holds(v.begin, keys + 1) && v.begin && v.begin[keys] == rows);
                                       CHECK(image.holds(v.bucket, rows) && image.holds(v.shows, rows));
                                       CHECK(image.holds(v.clicks, rows) && image.holds(v.index.slots, 16));
                                     });
  }
}

// The view of an Index is the map itself, that of its image is what a body reads.
void indexes() {
  Random random(8);
  for (size_t size : kSizes) {
    const std::vector<uint64_t> hashes = hashes_of(random, size), questions = asked(random, hashes);
    auto index = std::make_unique<Index>(1);  // grows
    for (size_t k = 0; k < size; ++k) index->map.insert(hashes[k], static_cast<uint32_t>(k));
    std::vector<int64_t> expected;
    for (uint64_t h : questions) {
      const uint32_t row = index->map.find(h);
      expected.push_back(row == HashIndex::kEmpty ? -3 : static_cast<int64_t>(row));
    }
    Image image(*index);
    index.reset();
    const IndexView& view = image.view<IndexView>();
    CHECK(image.holds(view.slots, view.mask + 1));
    Params q = with(view);
    q.i[0] = -3;
    for (size_t k = 0; k < questions.size(); ++k) {
      CHECK(JoinRow::apply(q, questions[k]) == expected[k]);
      CHECK(find_row(view, questions[k]) == (expected[k] < 0 ? kNoRow : static_cast<uint32_t>(expected[k])));
    }
  }
}

// ---- records --------------------------------------------------------------------------------------------------------

// A row as text, read from its block the way a gather does.
std::string told(const std::vector<RecordField>& fields, const char* block) {
  std::string out;
  auto add = [&out](const void* p, size_t n) {
    if (n) out.append(static_cast<const char*>(p), n);
    out += '|';
  };
  for (const RecordField& f : fields) {
    if (f.nullable) add(block + f.valid_offset, 1);
    if (f.inside()) {
      Inside inside;
      std::memcpy(&inside, block + f.offset, sizeof inside);
      add(block + inside.offset, inside.count * f.element());
    } else if (f.kind == "*s") {
      List<Str> list;
      std::memcpy(&list, block + f.offset, sizeof list);
      add(&list.n, sizeof list.n);
      for (uint32_t k = 0; k < list.n; ++k) add(list.p[k].p, list.p[k].n);
    } else {
      add(block + f.offset, f.width());
    }
  }
  return out;
}

// Rows of every kind, some null, some lists empty, some strings empty.
void fill(const std::shared_ptr<Records>& records, uint32_t rows, Random& random) {
  RecordSink sink(records);
  Bump pool;
  sink.begin(rows);
  for (size_t f = 0; f < records->fields().size(); ++f) {
    const RecordField& field = records->fields()[f];
    const size_t width = entry_width(field.kind);
    std::vector<uint64_t> entries(rows * 2);
    std::vector<uint8_t> valid(rows);
    for (uint32_t r = 0; r < rows; ++r) {
      char* entry = reinterpret_cast<char*>(entries.data()) + r * width;
      valid[r] = !field.nullable || random() % 3;
      if (!valid[r]) continue;
      if (width != 16) {
        for (size_t k = 0; k < width; ++k) entry[k] = static_cast<char>(random() % (width == 1 ? 2 : 256));
        continue;
      }
      const uint32_t n = static_cast<uint32_t>(number(random, 5));
      const size_t element = field.kind == "*s" ? sizeof(Str) : field.element();
      char* elements = pool.reserve(n * element);
      pool.commit(n * element);
      for (size_t k = 0; k < n * element; ++k) elements[k] = static_cast<char>(random());
      for (uint32_t k = 0; field.kind == "*s" && k < n; ++k) {
        const std::string s = text(random, 30);
        char* bytes = pool.reserve_bytes(s.size());
        pool.commit(s.size());
        std::memcpy(bytes, s.data(), s.size());
        reinterpret_cast<Str*>(elements)[k] = {bytes, static_cast<uint32_t>(s.size())};
      }
      const Str whole{elements, n};
      std::memcpy(entry, &whole, sizeof whole);
    }
    sink.take(static_cast<int>(f), Column{entries.data(), field.nullable ? valid.data() : nullptr}, pool);
  }
  sink.end();
}

// Rows made in two parts and put together, with the row of a missing key behind them.
void records_of(std::vector<RecordField> fields, uint32_t rows, Random& random) {
  auto records = std::make_shared<Records>(fields), part = std::make_shared<Records>(fields);
  const std::vector<RecordField> layout = records->fields();
  std::vector<std::string> expected;
  for (const auto& filled : {records, part}) {
    fill(filled, rows, random);
    for (uint32_t handle : filled->handles()) expected.push_back(told(layout, filled->at(handle)));
  }
  records->put(records->place(*part), std::move(*part));
  CHECK(part->rows() == 0);
  fill(part, rows, random);  // it can be used again
  part.reset();
  CHECK(records->rows() == expected.size());
  expected.push_back(told(layout, records->add(records->fixed_bytes())));
  const std::vector<uint32_t> handles = records->handles();
  for (size_t r = 0; r < handles.size(); ++r) CHECK(told(layout, records->at(handles[r])) == expected[r]);
  Image image(*records);
  records.reset();
  for (size_t r = 0; r < handles.size(); ++r) CHECK(told(layout, image.memory + size_t{handles[r]} * 8) == expected[r]);
}

void records() {
  Random random(9);
  for (uint32_t rows : {0u, 1u, 2u, 700u}) {
    records_of({{"i", true}, {"s", false}, {"*s", true}, {"b", true}, {"*k", false}, {"*s", false}, {"*b", true}}, rows,
               random);
    records_of({{"f", false}, {"t", true}, {"k", false}, {"*f", true}, {"s", true}}, rows, random);
    records_of({{"*s", false}}, rows, random);
    records_of({{"b", false}}, rows, random);
    records_of({}, rows, random);
  }
  Records small({{"*s", false}});  // each of many parts keeps the memory of its lists
  for (uint32_t k = 0; k < 1000; ++k) {
    auto part = std::make_shared<Records>(std::vector<RecordField>{{"*s", false}});
    fill(part, 1, random);
    small.put(small.place(*part), std::move(*part));
  }
  CHECK(small.rows() == 1000 && small.bytes() < 1000000);
  Image image{Records({{"*s", false}})};  // not a single row
  CHECK(image.bytes == 16);
}

void an_odd_address_is_refused() {
  const Boundaries table({1.0, 2.0});
  std::vector<char> out(table.image_bytes());
  bool refused = false;
  try {
    table.image(out.data(), 4104);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

}  // namespace

int main() {
  sets_of_ints();
  sets_of_floats();
  sets_of_strings();
  boundaries();
  json_paths();
  dictionaries_of_ids();
  dictionaries_of_vectors();
  histories();
  indexes();
  records();
  an_odd_address_is_refused();
  return 0;
}
