// Rows of inputs and weights in int8. A row is scaled by its own largest magnitude; a row of weights has a larger scale
// where `dot_int8` would saturate.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "parallel.h"
#include "vectors.h"

namespace nmtkit {

// Of matrix products, by the names of nmtkit/machine/number_format.py.
enum class NumberFormat { kFp32, kInt8 };

constexpr int kWeightMax = 127;  // weights in int8 are from -kWeightMax to kWeightMax
constexpr int kColumnBlock = 8;  // columns that one `dot_int8` takes

// The groups of four columns that an int8 product of so many columns has: columns are padded to whole kColumnBlocks.
inline int column_groups(int columns) { return (columns + kColumnBlock - 1) / kColumnBlock * (kColumnBlock / 4); }

// The largest magnitude of a row, at least 1e-30. NaN if the row has a NaN, which quantization would lose.
inline float abs_max(const float* row, int columns) {
  FloatVec maxima = set1(1e-30f), total = set1(0.0f);
  for_vectors(columns, [&](int k, int n) {
    const FloatVec x = abs(load_n(row + k, n));
    maxima = max(maxima, x);
    total = total + x;
  });
  return any_nan(total) ? std::numeric_limits<float>::quiet_NaN() : reduce_max(maxima);
}

// A block of inputs in int8; one for each thread.
struct QuantizedInput {
  std::vector<int32_t> x;         // (m, groups): four columns in each, as bytes: integer + kQuantMax + 1
  float scales[kRowBlock] = {};  // of each row

  // For m rows, or kRowBlock if m is larger. Throws std::bad_alloc.
  void reserve(size_t m, int columns) {
    x.resize(std::max(x.size(), std::min<size_t>(m, kRowBlock) * column_groups(columns)));
  }

  // Quantize rows of x (m, columns), m <= kRowBlock. Throws std::bad_alloc if it was not reserved.
  void quantize(const float* rows, int m, int columns) {
    reserve(m, columns);
    for (int i = 0; i < m; ++i) {
      const float* row = rows + static_cast<size_t>(i) * columns;
      uint8_t* bytes = reinterpret_cast<uint8_t*>(x.data() + static_cast<size_t>(i) * column_groups(columns));
      const float peak = abs_max(row, columns);
      scales[i] = peak / kQuantMax;
      const FloatVec factor = set1(kQuantMax / peak);
      for_vectors(columns, [=](int k, int n) {
        store_uint8(bytes + k, add(to_int(load_n(row + k, n) * factor), set1(kQuantMax + 1)), n);
      });
    }
  }
};

// A weight matrix (N, K), row by row: in fp32, or in int8 with a scale for each row.
struct WeightRows {
  const float* fp32;
  int rows, columns;  // one column for a vector
  const int8_t* int8 = nullptr;
  const float* scales = nullptr;

  // Quantize row n into `integers`, which is padded to kColumnBlock, such that `dot_int8` cannot saturate: a row in int8
  // changes only if it would. Returns the scale: NaN or infinity if the row is not finite.
  float quantize(int n, std::vector<int8_t>& integers) const {
    const size_t start = static_cast<size_t>(n) * columns;
    const float first = int8 ? scales[n] : abs_max(fp32 + start, columns) / kWeightMax;
    std::fill(integers.begin(), integers.end(), 0);
    for (float scale = first;;) {
      if (!std::isfinite(scale)) return scale;
      const auto round = [&](auto value) {
        for (int k = 0; k < columns; ++k) integers[k] = static_cast<int8_t>(std::nearbyint(value(k)));
      };
      if (fp32) round([&](int k) { return fp32[start + k] / scale; });
      else if (scale == first) std::copy_n(int8 + start, columns, integers.begin());
      else round([&, factor = first / scale](int k) { return int8[start + k] * factor; });
      const int largest = largest_pair_sum(integers);
      if (largest <= kPairSumLimit) return scale;
      scale *= static_cast<float>(largest + 1) / kPairSumLimit;
    }
  }

 private:
  // `dot_int8` adds the products of two neighbouring columns and of the two that are four further.
  static int largest_pair_sum(const std::vector<int8_t>& integers) {
    int largest = 0;
    if (kPairSumLimit == 4 * kWeightMax) return largest;  // it cannot saturate
    for (size_t k = 0; k < integers.size(); k += k % 4 == 2 ? 6 : 2) {
      int positive = 0, negative = 0;
      for (const int w : {integers[k], integers[k + 1], integers[k + 4], integers[k + 5]})
        (w > 0 ? positive : negative) += std::abs(w);
      largest = std::max({largest, positive, negative});
    }
    return largest;
  }
};

// The correction to add to a product of input bytes with a quantized row. Each byte is its integer plus kQuantMax + 1,
// so the product is too large by that number times the sum of the row.
inline int32_t compensation_of(const std::vector<int8_t>& integers) {
  return -(kQuantMax + 1) * std::accumulate(integers.begin(), integers.end(), 0);
}

}  // namespace nmtkit
