// The best rows by inner product: every kernel and every number of threads give the bits and the order of plain loops.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/vectors/best_products.h"
#include "tests/check.h"

using namespace cb;

namespace {

void compare(size_t rows, size_t width, size_t k, bool places, std::mt19937& random) {
  std::uniform_int_distribution<int> small(-2, 2);  // many equal products
  std::normal_distribution<float> any;
  const bool ties = random() % 2;
  std::vector<float> matrix(rows * width), vector(width);
  for (float& x : matrix) x = ties ? static_cast<float>(small(random)) : any(random);
  for (float& x : vector) x = ties ? static_cast<float>(small(random)) : any(random);
  if (rows > 3) matrix[3 * width] = std::numeric_limits<float>::quiet_NaN();
  std::vector<int64_t> at(places ? rows / 2 + 1 : 0);
  for (int64_t& p : at) p = static_cast<int64_t>(random() % rows);
  const size_t count = places ? at.size() : rows;
  const int64_t* which = places ? at.data() : nullptr;

  std::vector<float> plain(count);
  product_kernel_named("scalar")(matrix.data(), width, vector.data(), which, 0, count, plain.data());
  std::vector<size_t> order(count);
  for (size_t n = 0; n < count; ++n) order[n] = n;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (std::isnan(plain[a]) || std::isnan(plain[b])) return std::isnan(plain[a]) && !std::isnan(plain[b]);
    return plain[a] > plain[b];
  });
  for (const char* name : {"scalar", "wide", "avx2", "avx512"}) {
    const ProductKernel kernel = product_kernel_named(name);
    if (!kernel) continue;
    for (size_t threads : {1, 3}) {
      const auto found = best_products(matrix.data(), width, vector.data(), which, count, k, threads, kernel);
      CHECK(found.size() == std::min(k, count));
      for (size_t n = 0; n < found.size(); ++n) {
        CHECK(found[n].position == static_cast<int64_t>(order[n]));
        const float expected = plain[order[n]];
        CHECK(found[n].product == expected || (std::isnan(expected) && std::isnan(found[n].product)));
      }
    }
  }
}

}  // namespace

int main() {
  std::mt19937 random(7);
  for (size_t width : {1, 5, 16, 20, 33}) {
    for (size_t rows : {1, 2, 17, 700}) {
      for (size_t k : {1, 3, 400, 1000}) {
        compare(rows, width, k, false, random);
        compare(rows, width, k, true, random);
      }
    }
  }
  compare(40'000, 3, 50, false, random);  // several pieces
  CHECK(best_products(nullptr, 4, nullptr, nullptr, 0, 10, 2, product_kernel()).empty());
}
