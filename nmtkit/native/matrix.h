// x·Wᵀ + b for many x and one W, which is laid out once for the products to come.
//
// A row of the result depends on its row of x alone, to the last bit, whatever rows stand beside it: each sum runs over
// the columns in their order. So no batch, and no number of threads, changes what a sentence becomes.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "vectors.h"

namespace nmtkit {

constexpr int kPanel = 2 * kLanes;  // rows of W that stand together: two vectors of a result
constexpr int kBlock = 60;          // rows of x that one pass over W serves: they stay in the nearer caches
constexpr int kLevels = 63;         // of an input to each side of 0: two products of more overflow 16 bits
constexpr int kWeightLevels = 127;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

template <class T>
using Aligned = std::unique_ptr<T[], Free>;

// Zeros, aligned for vectors. Throws std::bad_alloc.
template <class T>
Aligned<T> aligned(size_t count) {
  const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
  void* memory = std::aligned_alloc(64, std::max<size_t>(bytes, 64));
  if (!memory) throw std::bad_alloc();
  std::memset(memory, 0, bytes);
  return Aligned<T>(static_cast<T*>(memory));
}

// What a thread needs for the products of a block of rows.
struct Rounded {
  std::vector<uint8_t> x;     // level + kLevels + 1
  float scales[kBlock] = {};  // of each row
};

class Matrix {
 public:
  // weight (N, K) and bias (N), or null; K a multiple of kLanes. With `eight_bits`, each row of W is rounded to
  // integers by its own largest value, and each row of x as it comes; their sums are exact.
  Matrix(const float* weight, const float* bias, int rows, int columns, bool eight_bits)
      : rows_(rows), columns_(columns), eight_bits_(eight_bits), bias_(aligned<float>(padded())) {
    if (bias) std::copy(bias, bias + rows, bias_.get());
    if (eight_bits)
      lay_out_bytes(weight);
    else
      lay_out_floats(weight);
  }

  int rows() const { return rows_; }
  int columns() const { return columns_; }

  // y (m, N) = x (m, K)·Wᵀ + b, or its positive part.
  void multiply(const float* x, int m, float* y, Rounded& rounded, bool positive = false) const {
    for (int i = 0; i < m; i += kBlock) {
      const int count = std::min(kBlock, m - i);
      const float* in = x + static_cast<size_t>(i) * columns_;
      float* out = y + static_cast<size_t>(i) * rows_;
      if (eight_bits_)
        multiply_bytes(in, count, out, rounded, positive);
      else
        multiply_floats(in, count, out, positive);
    }
  }

 private:
  int panels() const { return (rows_ + kPanel - 1) / kPanel; }
  size_t padded() const { return static_cast<size_t>(panels()) * kPanel; }

  // Panel by panel; in a panel column by column, 16 rows of W each.
  void lay_out_floats(const float* weight) {
    floats_ = aligned<float>(padded() * columns_);
    for (int n = 0; n < rows_; ++n) {
      float* panel = floats_.get() + static_cast<size_t>(n / kPanel) * kPanel * columns_;
      for (int k = 0; k < columns_; ++k) panel[k * kPanel + n % kPanel] = weight[static_cast<size_t>(n) * columns_ + k];
    }
  }

  // Panel by panel; in a panel by four columns, of 16 rows of W each.
  void lay_out_bytes(const float* weight) {
    bytes_ = aligned<int8_t>(padded() * columns_);
    scales_ = aligned<float>(padded());
    offsets_ = aligned<int32_t>(padded());
    for (int n = 0; n < rows_; ++n) {
      const float* row = weight + static_cast<size_t>(n) * columns_;
      int8_t* panel = bytes_.get() + static_cast<size_t>(n / kPanel) * kPanel * columns_;
      const float scale = largest(row) / kWeightLevels;
      scales_[n] = scale;
      if (!std::isfinite(scale)) continue;  // and so is what comes of it
      int32_t total = 0;
      for (int k = 0; k < columns_; ++k) {
        const int level = static_cast<int>(std::nearbyint(row[k] / scale));
        panel[k / 4 * 4 * kPanel + n % kPanel * 4 + k % 4] = static_cast<int8_t>(level);
        total += level;
      }
      offsets_[n] = -total * (kLevels + 1);
    }
  }

  // The largest magnitude of a row, and never 0. NaN where there is a NaN, so that it is not lost in rounding.
  float largest(const float* row) const {
    __m256 peaks = _mm256_set1_ps(1e-30f), unordered = _mm256_setzero_ps();
    for (int k = 0; k < columns_; k += kLanes) {
      const __m256 x = _mm256_loadu_ps(row + k);
      peaks = _mm256_max_ps(peaks, magnitude(x));
      unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    }
    return _mm256_movemask_ps(unordered) ? std::numeric_limits<float>::quiet_NaN() : greatest(peaks);
  }

  void round(const float* x, int m, Rounded& rounded) const {
    rounded.x.resize(std::max(rounded.x.size(), static_cast<size_t>(kBlock) * columns_));
    const __m256i zero = _mm256_set1_epi32(kLevels + 1);
    for (int i = 0; i < m; ++i) {
      const float* row = x + static_cast<size_t>(i) * columns_;
      uint8_t* levels = rounded.x.data() + static_cast<size_t>(i) * columns_;
      const float peak = largest(row);
      rounded.scales[i] = peak / kLevels;
      const __m256 factor = _mm256_set1_ps(kLevels / peak);
      for (int k = 0; k < columns_; k += kLanes) {
        const __m256i level = _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(row + k), factor)), zero);
        const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(level), _mm256_extracti128_si256(level, 1));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(levels + k), _mm_packus_epi16(words, words));
      }
    }
  }

  // Write two vectors of a row of y, but for what lies beyond its end.
  void store(__m256 first, __m256 second, int panel, float* row, bool positive) const {
    if (positive) {
      first = _mm256_max_ps(_mm256_setzero_ps(), first);  // in this order NaN stays NaN
      second = _mm256_max_ps(_mm256_setzero_ps(), second);
    }
    float* to = row + panel * kPanel;
    const int left = rows_ - panel * kPanel;
    if (left >= kPanel) {
      _mm256_storeu_ps(to, first);
      _mm256_storeu_ps(to + kLanes, second);
    } else {
      float both[kPanel];
      _mm256_storeu_ps(both, first);
      _mm256_storeu_ps(both + kLanes, second);
      std::copy(both, both + left, to);
    }
  }

  // M rows of x and P panels of W: their sums stay in registers, which hold twelve vectors of them and what goes in.
  template <int M, int P>
  __attribute__((noinline)) void tile(const float* x, int panel, float* y, bool positive) const {
    __m256 sums[M][P][2];
    const size_t step = static_cast<size_t>(kPanel) * columns_;
    const float* w = floats_.get() + panel * step;
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) sums[i][p][0] = sums[i][p][1] = _mm256_setzero_ps();
#pragma GCC unroll 1
    for (int k = 0; k < columns_; ++k, w += kPanel) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const __m256 first = _mm256_load_ps(w + p * step), second = _mm256_load_ps(w + p * step + kLanes);
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) {
          const __m256 value = _mm256_broadcast_ss(x + static_cast<size_t>(i) * columns_ + k);
          sums[i][p][0] = _mm256_fmadd_ps(value, first, sums[i][p][0]);
          sums[i][p][1] = _mm256_fmadd_ps(value, second, sums[i][p][1]);
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const float* bias = bias_.get() + (panel + p) * kPanel;
        store(_mm256_add_ps(sums[i][p][0], _mm256_load_ps(bias)),
              _mm256_add_ps(sums[i][p][1], _mm256_load_ps(bias + kLanes)), panel + p,
              y + static_cast<size_t>(i) * rows_, positive);
      }
  }

  // The same of integers: 16-bit sums of two products each, of four in 32 bits.
  template <int M>
  __attribute__((noinline)) void tile(const uint8_t* x, const float* x_scales, int panel, float* y,
                                           bool positive) const {
    __m256i sums[M][2];
    const int8_t* w = bytes_.get() + static_cast<size_t>(panel) * kPanel * columns_;
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) sums[i][0] = sums[i][1] = _mm256_setzero_si256();
#pragma GCC unroll 1
    for (int k = 0; k < columns_; k += 4, w += 4 * kPanel) {
      const __m256i first = _mm256_load_si256(reinterpret_cast<const __m256i*>(w));
      const __m256i second = _mm256_load_si256(reinterpret_cast<const __m256i*>(w + 4 * kLanes));
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        int32_t four;
        std::memcpy(&four, x + static_cast<size_t>(i) * columns_ + k, 4);
        const __m256i values = _mm256_set1_epi32(four);
        sums[i][0] = _mm256_add_epi32(sums[i][0], _mm256_madd_epi16(_mm256_maddubs_epi16(values, first), ones));
        sums[i][1] = _mm256_add_epi32(sums[i][1], _mm256_madd_epi16(_mm256_maddubs_epi16(values, second), ones));
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
      __m256 results[2];
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const int n = panel * kPanel + half * kLanes;
        const __m256i offset = _mm256_load_si256(reinterpret_cast<const __m256i*>(offsets_.get() + n));
        const __m256 scale = _mm256_mul_ps(_mm256_load_ps(scales_.get() + n), _mm256_set1_ps(x_scales[i]));
        results[half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_add_epi32(sums[i][half], offset)), scale,
                                        _mm256_load_ps(bias_.get() + n));
      }
      store(results[0], results[1], panel, y + static_cast<size_t>(i) * rows_, positive);
    }
  }

  // M rows at all panels: of few rows several panels at once, since a sum waits for the one before.
  template <int M>
  void few_rows(const float* x, float* y, bool positive) const {
    constexpr int P = 4 / M;
    int panel = 0;
    for (; panel + P <= panels(); panel += P) tile<M, P>(x, panel, y, positive);
    for (; panel < panels(); ++panel) tile<M, 1>(x, panel, y, positive);
  }

  void multiply_floats(const float* x, int m, float* y, bool positive) const {
    if (m <= 3) {
      if (m == 1) few_rows<1>(x, y, positive);
      if (m == 2) few_rows<2>(x, y, positive);
      if (m == 3) few_rows<3>(x, y, positive);
      return;
    }
    for (int panel = 0; panel < panels(); ++panel) {
      const float* in = x;
      float* out = y;
      int left = m;
      for (; left >= 6; left -= 6, in += 6 * static_cast<size_t>(columns_), out += 6 * static_cast<size_t>(rows_))
        tile<6, 1>(in, panel, out, positive);
      if (left == 5) tile<5, 1>(in, panel, out, positive);
      if (left == 4) tile<4, 1>(in, panel, out, positive);
      if (left == 3) tile<3, 1>(in, panel, out, positive);
      if (left == 2) tile<2, 1>(in, panel, out, positive);
      if (left == 1) tile<1, 1>(in, panel, out, positive);
    }
  }

  void multiply_bytes(const float* x, int m, float* y, Rounded& rounded, bool positive) const {
    round(x, m, rounded);
    for (int panel = 0; panel < panels(); ++panel) {
      const uint8_t* in = rounded.x.data();
      const float* x_scales = rounded.scales;
      float* out = y;
      int left = m;
      for (; left >= 4; left -= 4, in += 4 * static_cast<size_t>(columns_), out += 4 * static_cast<size_t>(rows_)) {
        tile<4>(in, x_scales, panel, out, positive);
        x_scales += 4;
      }
      if (left == 3) tile<3>(in, x_scales, panel, out, positive);
      if (left == 2) tile<2>(in, x_scales, panel, out, positive);
      if (left == 1) tile<1>(in, x_scales, panel, out, positive);
    }
  }

  int rows_, columns_;
  bool eight_bits_;
  Aligned<float> bias_;
  Aligned<float> floats_;     // W
  Aligned<int8_t> bytes_;     // or W in levels
  Aligned<float> scales_;     // of a level in each row
  Aligned<int32_t> offsets_;  // what the levels of x being above 0 add to each sum
};

}  // namespace nmtkit
