// The file of a table: by rows, as the GPU's table reads it, and as the table in memory does. Both take the same files.
#include "core/embed/table_file.h"

#include "core/embed/memory_table.h"
#include "fuzz/fuzz.h"

using namespace cb;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::begin();
  static fuzz::MemoryFile file;
  const std::string path = file.holding({reinterpret_cast<const char*>(data), size});
  size_t keys = 0;
  bool read = false;
  try {
    const SavedRows rows = load_rows(path);
    keys = rows.keys.size();
    EXPECT(rows.rows.size() == keys * rows.shape.floats());
    fuzz::look_at(rows.rows.data(), rows.rows.size() * sizeof(float));
    EXPECT(saved_shape(path).floats() == rows.shape.floats());
    read = true;
  } catch (const DamagedFile&) {
  }
  try {
    const auto table = MemoryTable::load(path, size_t{64} << 20, 1);
    EXPECT(read && table->size() == keys);
    const int64_t some[] = {1, 2, -3};
    std::vector<float> out(3 * table->shape().width());
    table->pull(some, out.data(), false);
  } catch (const DamagedFile&) {
    EXPECT(!read);
  } catch (const TableFull&) {
  }
  return 0;
}
