#include "core/join/spill_file.h"

namespace cb {

using namespace spill;

OwnedFile::OwnedFile(int borrowed) : file_(::fcntl(borrowed, F_DUPFD_CLOEXEC, 0)) {
  if (file_ < 0) throw_errno();
}

OwnedFile::~OwnedFile() {
  if (file_ >= 0) ::close(file_);
}

void SpillShape::put(const char* block, size_t bytes, std::vector<char>& out) const {
  const size_t begin = out.size();
  out.insert(out.end(), block, block + bytes);
  for (const RecordField& f : fields) {
    if (f.kind != "*s") continue;
    const auto list = load<List<Str>>(block + f.offset);
    const size_t at = out.size() - begin;
    if (at > UINT32_MAX) too_long();
    for (uint32_t k = 0; k < list.n; ++k) append(out, list.p[k].n);
    for (uint32_t k = 0; k < list.n; ++k) out.insert(out.end(), list.p[k].p, list.p[k].p + list.p[k].n);
    out.resize(begin + aligned(out.size() - begin));
    const Inside inside{static_cast<uint32_t>(at), list.n};
    std::memset(out.data() + begin + f.offset, 0, sizeof(List<Str>));
    std::memcpy(out.data() + begin + f.offset, &inside, sizeof inside);
  }
  if (out.size() - begin > UINT32_MAX) too_long();
}

const char* SpillShape::get(const char* record, size_t bytes, Bump& pool) const {
  auto need = [&](size_t at, size_t n) {
    if (at > bytes || n > bytes - at) throw DamagedFile("a record ends before its values do");
  };
  need(0, fixed_bytes);
  char* to = pool.reserve(bytes);
  std::memcpy(to, record, bytes);
  pool.commit(bytes);
  for (const RecordField& f : fields) {
    if (f.width() == 8 && f.inside()) {
      const Inside inside = load<Inside>(to + f.offset);
      need(inside.offset, size_t{inside.count} * f.element());
    }
    if (f.kind != "*s") continue;
    const Inside inside = load<Inside>(to + f.offset);
    need(inside.offset, size_t{inside.count} * 4);
    Str* elements = inside.count ? pool.take<Str>(inside.count) : nullptr;
    size_t at = inside.offset + size_t{inside.count} * 4;
    for (uint32_t k = 0; k < inside.count; ++k) {
      const uint32_t n = load<uint32_t>(to + inside.offset + size_t{k} * 4);
      need(at, n);
      elements[k] = Str{to + at, n};
      at += n;
    }
    const List<Str> list{elements, inside.count};
    std::memcpy(to + f.offset, &list, sizeof list);
  }
  return to;
}

}  // namespace cb
