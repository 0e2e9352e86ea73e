#include "core/vectors/best_products.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "core/system/parallel.h"

namespace cb {

namespace {

constexpr size_t kLanes = 16, kPiece = 16'384;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

inline const float* row_of(const float* rows, size_t width, const int64_t* places, size_t n) {
  return rows + (places ? static_cast<size_t>(places[n]) : n) * width;
}

// Adds what is left behind whole registers, then the sums: the same for all kernels.
inline __attribute__((always_inline)) float summed(float* sums, const float* row, const float* vector, size_t begin,
                                                   size_t width) {
  for (size_t j = begin; j < width; ++j) sums[j - begin] += row[j] * vector[j];
  for (size_t half = kLanes / 2; half > 0; half /= 2)
    for (size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  return sums[0];
}

void scalar_products(const float* rows, size_t width, const float* vector, const int64_t* places, size_t first,
                     size_t count, float* products) {
  for (size_t n = 0; n < count; ++n) {
    const float* row = row_of(rows, width, places, first + n);
    float sums[kLanes] = {};
    const size_t whole = width / kLanes * kLanes;
    for (size_t j = 0; j < whole; ++j) sums[j % kLanes] += row[j] * vector[j];
    products[n] = summed(sums, row, vector, whole, width);
  }
}

// Compiled once for each width of registers: the compiler takes as many as sixteen floats need.
inline __attribute__((always_inline)) void wide_body(const float* rows, size_t width, const float* vector,
                                                     const int64_t* places, size_t first, size_t count,
                                                     float* products) {
  constexpr size_t kAhead = 8;  // rows at random places are asked for before their turn
  for (size_t n = 0; n < count; ++n) {
    const float* row = row_of(rows, width, places, first + n);
    if (places && n + kAhead < count) __builtin_prefetch(row_of(rows, width, places, first + n + kAhead));
    Lanes total = {};
    size_t j = 0;
    for (; j + kLanes <= width; j += kLanes) {
      Lanes a, b;
      std::memcpy(&a, row + j, sizeof a);
      std::memcpy(&b, vector + j, sizeof b);
      total += a * b;
    }
    float sums[kLanes];
    std::memcpy(sums, &total, sizeof total);
    products[n] = summed(sums, row, vector, j, width);
  }
}

void wide_products(const float* rows, size_t width, const float* vector, const int64_t* places, size_t first,
                   size_t count, float* products) {
  wide_body(rows, width, vector, places, first, count, products);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void avx2_products(const float* rows, size_t width, const float* vector,
                                                   const int64_t* places, size_t first, size_t count, float* products) {
  wide_body(rows, width, vector, places, first, count, products);
}

__attribute__((target("avx512f"))) void avx512_products(const float* rows, size_t width, const float* vector,
                                                        const int64_t* places, size_t first, size_t count,
                                                        float* products) {
  wide_body(rows, width, vector, places, first, count, products);
}
#endif

bool better(const BestProduct& a, const BestProduct& b) {
  const bool none_a = std::isnan(a.product), none_b = std::isnan(b.product);
  if (none_a != none_b) return none_a;
  if (!none_a && a.product != b.product) return a.product > b.product;
  return a.position < b.position;
}

void keep_best(std::vector<BestProduct>& found, size_t k) {
  if (found.size() <= k) return;
  std::nth_element(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(k - 1), found.end(), better);
  found.resize(k);
}

}  // namespace

ProductKernel product_kernel_named(const std::string& name) {
  if (name == "scalar") return scalar_products;
  if (name == "wide") return wide_products;
#if defined(__x86_64__)
  if (name == "avx2" && __builtin_cpu_supports("avx2")) return avx2_products;
  if (name == "avx512" && __builtin_cpu_supports("avx512f")) return avx512_products;
#endif
  return nullptr;
}

ProductKernel product_kernel() {
  static const ProductKernel chosen = [] {
    if (const char* asked = std::getenv("CTRBOX_SIMD"))
      if (const ProductKernel found = product_kernel_named(asked)) return found;
    for (const char* name : {"avx512", "avx2"})
      if (const ProductKernel found = product_kernel_named(name)) return found;
    return product_kernel_named("wide");
  }();
  return chosen;
}

std::vector<BestProduct> best_products(const float* rows, size_t width, const float* vector, const int64_t* places,
                                       size_t count, size_t k, size_t threads, ProductKernel kernel) {
  k = std::min(k, count);
  if (k == 0) return {};
  const size_t piece = std::max(kPiece, 4 * k), pieces = (count + piece - 1) / piece;
  std::vector<std::vector<BestProduct>> parts(pieces);
  parallel_for(threads, pieces, [&](size_t task) {
    const size_t begin = task * piece, end = std::min(count, begin + piece);
    std::vector<BestProduct>& mine = parts[task];
    float products[256];
    bool full = false;  // `least` is the worst of k that were found: nothing that is not better can be among the best
    BestProduct least{};
    for (size_t at = begin; at < end; at += std::size(products)) {
      const size_t n = std::min(std::size(products), end - at);
      kernel(rows, width, vector, places, at, n, products);
      for (size_t i = 0; i < n; ++i) {
        const BestProduct one{products[i], static_cast<int64_t>(at + i)};
        if (full && !better(one, least)) continue;
        mine.push_back(one);
        if (mine.size() < 2 * k) continue;
        keep_best(mine, k);
        least = mine[k - 1];  // nth_element leaves the worst of the kept there
        full = true;
      }
    }
    keep_best(mine, k);
  });
  std::vector<BestProduct> found = std::move(parts[0]);
  for (size_t task = 1; task < pieces; ++task) found.insert(found.end(), parts[task].begin(), parts[task].end());
  keep_best(found, k);
  std::sort(found.begin(), found.end(), better);
  return found;
}

}  // namespace cb
