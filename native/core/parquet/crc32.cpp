#include "core/parquet/crc32.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace cb::parquet {

namespace {

constexpr std::array<std::array<uint32_t, 256>, 8> tables() {
  std::array<std::array<uint32_t, 256>, 8> t{};
  for (uint32_t n = 0; n < 256; ++n) {
    uint32_t c = n;
    for (int k = 0; k < 8; ++k) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
    t[0][n] = c;
  }
  for (uint32_t n = 0; n < 256; ++n)
    for (size_t k = 1; k < 8; ++k) t[k][n] = t[0][t[k - 1][n] & 255] ^ (t[k - 1][n] >> 8);
  return t;
}

constexpr auto kTables = tables();

// Goes on from `c`, which is not inverted.
uint32_t go_on(uint32_t c, const uint8_t* p, size_t n) {
  static_assert(std::endian::native == std::endian::little);
  const auto& t = kTables;
  for (; n >= 8; n -= 8, p += 8) {
    uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + 4, 4);
    low ^= c;
    c = t[7][low & 255] ^ t[6][(low >> 8) & 255] ^ t[5][(low >> 16) & 255] ^ t[4][low >> 24] ^ t[3][high & 255] ^
        t[2][(high >> 8) & 255] ^ t[1][(high >> 16) & 255] ^ t[0][high >> 24];
  }
  for (; n; --n) c = t[0][(c ^ *p++) & 255] ^ (c >> 8);
  return c;
}

#if defined(__x86_64__)
// 128 bits of the message stand for themselves times a power of x, 128 or 512 bits further on: two carry-less products
// by that power's remainders take them there, where they are added to what lies there. What is left of a long message
// is 16 bytes with the same remainder, which the tables take.
__attribute__((target("pclmul,sse4.1"))) __m128i fold(__m128i x, __m128i by, __m128i onto) {
  const __m128i low = _mm_clmulepi64_si128(x, by, 0x00), high = _mm_clmulepi64_si128(x, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), onto);
}

__attribute__((target("pclmul,sse4.1"))) uint32_t crc32_folded(const uint8_t* p, size_t n) {
  const __m128i by_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
  auto load = [&](size_t at) __attribute__((target("pclmul,sse4.1"))) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + at));
  };
  __m128i a = _mm_xor_si128(load(0), _mm_cvtsi32_si128(-1)), b = load(16), c = load(32), d = load(48);
  for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
    a = fold(a, by_512, load(0));
    b = fold(b, by_512, load(16));
    c = fold(c, by_512, load(32));
    d = fold(d, by_512, load(48));
  }
  a = fold(fold(fold(a, by_128, b), by_128, c), by_128, d);
  for (; n >= 16; p += 16, n -= 16) a = fold(a, by_128, load(0));
  uint8_t rest[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), a);
  return ~go_on(go_on(0, rest, 16), p, n);
}
#elif defined(__aarch64__) && defined(__linux__)
__attribute__((target("+crc"))) uint32_t crc32_told(const uint8_t* p, size_t n) {
  uint32_t c = ~0u;
  for (; n >= 8; n -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    c = __crc32d(c, word);
  }
  for (; n; --n) c = __crc32b(c, *p++);
  return ~c;
}
#endif

}  // namespace

uint32_t crc32_by_tables(const uint8_t* bytes, size_t n) { return ~go_on(~0u, bytes, n); }

uint32_t crc32(const uint8_t* bytes, size_t n) {
#if defined(__x86_64__)
  static const bool can = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  if (can && n >= 64) return crc32_folded(bytes, n);
#elif defined(__aarch64__) && defined(__linux__)
  static const bool can = ::getauxval(AT_HWCAP) & HWCAP_CRC32;
  if (can) return crc32_told(bytes, n);
#endif
  return crc32_by_tables(bytes, n);
}

}  // namespace cb::parquet
