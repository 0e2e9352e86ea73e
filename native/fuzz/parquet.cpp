// A column chunk of Parquet: what it is said to hold from the first bytes, its pages from the rest.
#include "core/parquet/column_chunk.h"
#include "fuzz/fuzz.h"

using namespace cb::parquet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  ColumnShape shape;
  shape.codec = static_cast<Codec>(input.byte() % 3);
  shape.width = input.byte() % 3 * 4;
  shape.nullable = input.byte() % 2;
  shape.rows = input.take<uint16_t>();
  fuzz::Heap heap;
  const std::string_view pages = input.rest();
  const auto* chunk = reinterpret_cast<const uint8_t*>(heap.copy(pages));
  const std::optional<DecodedColumn> column = decode(chunk, pages.size(), shape);
  if (!column) return 0;
  const size_t rows = static_cast<size_t>(shape.rows);
  if (shape.width) EXPECT(column->values.size() == rows * shape.width);
  if (!shape.width) {
    EXPECT(column->offsets.size() == rows + 1 && column->offsets.data()[0] == 0);
    for (size_t k = 0; k < rows; ++k) EXPECT(column->offsets.data()[k] <= column->offsets.data()[k + 1]);
    EXPECT(static_cast<size_t>(column->offsets.data()[rows]) == column->values.size());
  }
  EXPECT(column->nulls >= 0 && column->nulls <= shape.rows);
  EXPECT(column->nulls == 0 || column->valid.size() == (rows + 7) / 8);
  fuzz::look_at(column->values.data(), column->values.size());
  return 0;
}
