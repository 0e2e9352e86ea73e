// Programs end to end without Python: loads, calls, joins, batches; the same bits for any chunk and from many threads.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "core/program/result_sinks.h"
#include "operators/hash.h"
#include "tests/check.h"

using namespace cb;

namespace {

// A record batch of an int64 column (every seventh null) and a string column, as the Arrow C data interface gives it.
struct Log {
  explicit Log(int64_t rows)
      : ids(static_cast<size_t>(rows)), bits(static_cast<size_t>(rows + 7) / 8, 0xff), offsets{0} {
    for (int64_t r = 0; r < rows; ++r) {
      size_t k = static_cast<size_t>(r);
      ids[k] = r * 37 % 1009;
      if (r % 7 == 0) bits[k / 8] = static_cast<uint8_t>(bits[k / 8] & ~(1 << (k % 8)));
      for (int64_t w = 0; w < r % 5; ++w) text += (w ? " w" : "w") + std::to_string((r + w) % 97);
      offsets.push_back(static_cast<int32_t>(text.size()));
    }
  }

  std::shared_ptr<Frame> frame() {
    int_buffers[0] = bits.data();
    int_buffers[1] = ids.data();
    text_buffers[0] = nullptr;
    text_buffers[1] = offsets.data();
    text_buffers[2] = text.data();
    int64_t rows = static_cast<int64_t>(ids.size());
    children[0] = {rows, -1, 0, 2, 0, int_buffers, nullptr, nullptr, nullptr, nullptr};
    children[1] = {rows, 0, 0, 3, 0, text_buffers, nullptr, nullptr, nullptr, nullptr};
    fields[0] = {"l", "id", nullptr, 2, 0, nullptr, nullptr, nullptr, nullptr};
    fields[1] = {"u", "query", nullptr, 0, 0, nullptr, nullptr, nullptr, nullptr};
    for (int k = 0; k < 2; ++k) {
      child_arrays[k] = &children[k];
      child_schemas[k] = &fields[k];
    }
    ArrowSchema schema{"+s", "", nullptr, 0, 2, child_schemas, nullptr, nullptr, nullptr};
    ArrowArray array{rows, 0, 0, 1, 2, no_buffers, child_arrays, nullptr, nullptr, nullptr};
    return Frame::from_arrow(&schema, &array);
  }

  std::vector<int64_t> ids;
  std::vector<uint8_t> bits;
  std::vector<int32_t> offsets;
  std::string text;
  const void* int_buffers[2] = {};
  const void* text_buffers[3] = {};
  const void* no_buffers[1] = {};
  ArrowArray children[2] = {};
  ArrowArray* child_arrays[2] = {};
  ArrowSchema fields[2] = {};
  ArrowSchema* child_schemas[2] = {};
};

// A dimension of 500 ids with a list of keys each, and the row for ids it lacks.
struct Dimension {
  std::shared_ptr<Index> index = std::make_shared<Index>(16);
  std::shared_ptr<Records> records =
      std::make_shared<Records>(std::vector<RecordField>{{"*k", false}, {"i", true}, {"s", false}});
  Dimension() {
    std::vector<uint64_t> keys(64);
    for (size_t k = 0; k < keys.size(); ++k) keys[k] = k * 11;
    RecordSink sink(records);
    const uint32_t rows = 501;
    std::vector<List<uint64_t>> lists(rows);
    std::vector<int64_t> numbers(rows);
    std::vector<uint8_t> valid(rows);
    std::vector<Str> names(rows);
    for (uint32_t r = 0; r < rows; ++r) {
      lists[r] = {keys.data(), r % 33};
      numbers[r] = r;
      valid[r] = r % 3 != 0;
      names[r] = {"abcdefghijklmnop", r % 17};
    }
    sink.begin(rows);
    Bump pool;
    sink.take(0, Column{lists.data(), nullptr}, pool);
    sink.take(1, Column{numbers.data(), valid.data()}, pool);
    sink.take(2, Column{names.data(), nullptr}, pool);
    sink.end();
    for (uint32_t r = 0; r + 1 < rows; ++r) index->map.insert(hash_int(r * 2), r);
    index->map.renumber(records->handles());
  }
  int64_t null_row() const { return records->handles().back(); }
};

const std::vector<BatchSlot> kSlots = {{BatchSlot::What::Keys, "k", 0, 1},
                                       {BatchSlot::What::Keys, "*k", 1, 1},
                                       {BatchSlot::What::Keys, "*k", 2, 1},
                                       {BatchSlot::What::Dense, "i", 0, 1},
                                       {BatchSlot::What::Dense, "i", 1, 1}};

std::unique_ptr<Program> assemble(uint32_t chunk, const Dimension& dimension) {
  auto p = std::make_unique<Program>(chunk);
  int id = p->load(0, 0, "i", true, "id"), query = p->load(0, 1, "s", false, "query");
  int none = p->literal("i", -1, 0, "");
  int filled = p->call("fill", "i,i", {id, none}, {"i"}, {false}, {}, {}, {}, nullptr, false)[0];
  int hashed = p->call("hash", "i", {filled}, {"k"}, {false}, {}, {}, {}, nullptr, false)[0];
  int row = p->lookup(dimension.index, hashed, dimension.null_row());
  std::vector<int> joined = p->gather(dimension.records, row, {0, 1, 2});
  int number = p->call("fill", "i,i", {joined[1], none}, {"i"}, {false}, {}, {}, {}, nullptr, false)[0];
  int length = p->call("length", "s", {joined[2]}, {"i"}, {false}, {}, {}, {}, nullptr, false)[0];
  int words = p->call("split", "s", {query}, {"*s"}, {false}, {}, {}, {" "}, nullptr, false)[0];
  int tokens = p->call("hash", "*s", {words}, {"*k"}, {false}, {}, {}, {}, nullptr, false)[0];
  int key = p->call("key", "k", {hashed}, {"k"}, {false}, {7}, {}, {}, nullptr, false)[0];
  int keys = p->call("key", "*k", {tokens}, {"*k"}, {false}, {9}, {}, {}, nullptr, false)[0];
  p->emit(0, key);
  p->emit(1, keys);
  p->emit(2, joined[0]);
  p->emit(3, number);
  p->emit(4, length);
  p->finish();
  return p;
}

std::shared_ptr<Batch> run(const Program& p, const std::vector<Piece>& pieces) {
  int64_t rows = 0;
  for (const Piece& piece : pieces) rows += piece.rows;
  BatchSink sink(kSlots, 2, 3, rows, {});
  p.run(pieces, sink);
  return sink.batch();
}

template <class T>
bool equal(const Buffer<T>& a, const Buffer<T>& b) {
  return a.size() == b.size() && (a.size() == 0 || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

bool equal(const Batch& a, const Batch& b) {
  if (a.rows != b.rows || !equal(a.dense, b.dense)) return false;
  for (size_t k = 0; k < a.fields.size(); ++k)
    if (!equal(a.fields[k].values, b.fields[k].values) || !equal(a.fields[k].offsets, b.fields[k].offsets))
      return false;
  return true;
}

}  // namespace

int main() {
  Log log(5000);
  std::shared_ptr<Frame> frame = log.frame();
  Dimension dimension;
  Piece whole;
  whole.rows = frame->rows();
  whole.sources.push_back(Rows{frame.get(), nullptr, 0, false});
  std::unique_ptr<Program> program = assemble(1024, dimension);
  std::shared_ptr<Batch> expected = run(*program, {whole});

  // By hand: row 4 has id 148, even, so record 74; row 0 is null, filled to -1, which the index lacks: record 500.
  CHECK(expected->fields[0].values.data()[4] == static_cast<int64_t>(key_of(hash_int(148), 7)));
  CHECK(expected->dense.data()[4 * 2] == 74.0f && expected->dense.data()[4 * 2 + 1] == 74 % 17);
  CHECK(expected->fields[2].offsets.data()[5] - expected->fields[2].offsets.data()[4] == 74 % 33);
  CHECK(expected->dense.data()[0] == 500.0f && expected->dense.data()[1] == 500 % 17);
  CHECK(expected->fields[1].offsets.data()[5000] == 5000 / 5 * (0 + 1 + 2 + 3 + 4));

  for (uint32_t chunk : {1u, 7u, 64u, 5000u}) CHECK(equal(*run(*assemble(chunk, dimension), {whole}), *expected));

  // The same rows in pieces, by base and by index.
  std::vector<int32_t> index(5000);
  for (int32_t r = 0; r < 5000; ++r) index[static_cast<size_t>(r)] = r;
  Piece front = whole, back = whole;
  front.rows = 1234;
  back.rows = 5000 - 1234;
  back.sources[0] = Rows{frame.get(), index.data() + 1234, 0, false};
  CHECK(equal(*run(*program, {front, back}), *expected));

  // A row that is missing is a null row; a column that must not be null says where.
  Piece missing = whole;
  std::vector<int32_t> gone = {-1};
  missing.rows = 1;
  missing.sources[0] = Rows{frame.get(), gone.data(), 0, true};
  try {
    run(*program, {front, missing});
    CHECK(false);
  } catch (const RowError& e) {
    CHECK(e.piece == 1 && e.position == 0 && std::strstr(e.what(), "query"));
  }

  // Many threads, one program, one pool of buffers; batches live and die meanwhile.
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      std::shared_ptr<Batch> held;
      for (int k = 0; k < 25; ++k) {
        std::shared_ptr<Batch> batch = run(*program, {whole});
        CHECK(equal(*batch, *expected));
        if (k % 3 == 0) held = batch;
        CHECK(equal(*held, *expected));
      }
    });
  for (std::thread& t : threads) t.join();
  std::puts("ok");
}
