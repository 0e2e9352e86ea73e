// A patch with its base before it: four bytes that say how long the base is, the base, the patch.
#include "capi/patch_file.h"

#include "fuzz/fuzz.h"

using namespace cb;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::begin();
  fuzz::Input in(data, size);
  fuzz::Heap heap;
  const std::string_view base = in.piece(in.take<uint32_t>()), patch = in.rest();
  const Bytes before(reinterpret_cast<const uint8_t*>(heap.copy(base)), base.size());
  const Bytes change(reinterpret_cast<const uint8_t*>(heap.copy(patch)), patch.size());
  try {
    const std::vector<uint8_t> after = patched(before, change, 1 << 20);
    EXPECT(after.size() <= 1 << 20);
  } catch (const BadPatch&) {
  } catch (const WrongBase&) {
  } catch (const TooLarge&) {
  }
  return 0;
}
