// Computes SHA-256 (FIPS 180-4) with plain loops.
#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

namespace cb {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  void add(const uint8_t* p, size_t n) {
    total_ += n;
    while (n > 0) {
      const size_t part = n < 64 - held_ ? n : 64 - held_;
      std::memcpy(block_ + held_, p, part);
      held_ += part;
      p += part;
      n -= part;
      if (held_ == 64) take_block();
    }
  }
  Digest value() {
    const uint64_t bits = total_ * 8;
    block_[held_++] = 0x80;
    if (held_ > 56) {
      std::memset(block_ + held_, 0, 64 - held_);
      take_block();
    }
    std::memset(block_ + held_, 0, 56 - held_);
    for (unsigned k = 0; k < 8; ++k) block_[56 + k] = static_cast<uint8_t>(bits >> (56 - 8 * k));
    take_block();
    Digest out;
    for (unsigned k = 0; k < 32; ++k) out[k] = static_cast<uint8_t>(state_[k / 4] >> (24 - 8 * (k % 4)));
    return out;
  }
  static Digest of(const uint8_t* p, size_t n) {
    Sha256 sum;
    sum.add(p, n);
    return sum.value();
  }

 private:
  void take_block() {
    // The first 32 bits of the fractions of the cube roots of the first 64 primes.
    static constexpr uint32_t kRound[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64];
    for (unsigned k = 0; k < 16; ++k) {
      const uint8_t* b = block_ + 4 * k;
      w[k] = uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | b[3];
    }
    for (unsigned k = 16; k < 64; ++k) {
      const uint32_t a = w[k - 15], b = w[k - 2];
      w[k] = w[k - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[k - 7] +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    std::array<uint32_t, 8> s = state_;
    for (unsigned k = 0; k < 64; ++k) {
      const uint32_t big1 = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
      const uint32_t one = s[7] + big1 + ((s[4] & s[5]) ^ (~s[4] & s[6])) + kRound[k] + w[k];
      const uint32_t big0 = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
      const uint32_t two = big0 + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      s = {one + two, s[0], s[1], s[2], s[3] + one, s[4], s[5], s[6]};
    }
    for (unsigned k = 0; k < 8; ++k) state_[k] += s[k];
    held_ = 0;
  }

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint8_t block_[64];
  size_t held_ = 0;
  uint64_t total_ = 0;
};

}  // namespace cb
