// x·Wᵀ + b for many x and one W, which is laid out once for the products to come.
//
// A row of the result depends on its row of x alone, to the last bit, whatever rows stand beside it: each sum runs over
// the columns in their order. So no batch, and no number of threads, changes what a sentence becomes.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#include "vectors.h"

namespace nmtkit {

constexpr int kPanel = 2 * kLanes;  // rows of W that stand together: two vectors of a result
constexpr int kBlock = 120;         // rows of x that one pass over W serves: they stay in the nearer caches
constexpr int kLevels = 63;         // of an input to each side of 0
constexpr int kWeightLevels = 127;  // of a weight, at most
constexpr int kFourLevels = 258;    // of four weights of one sign together: 127 times that fits into 16 bits

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
    std::vector<int> levels(columns_);
    for (int n = 0; n < rows_; ++n) {
      int8_t* panel = bytes_.get() + static_cast<size_t>(n / kPanel) * kPanel * columns_;
      scales_[n] = round_weights(weight + static_cast<size_t>(n) * columns_, levels);
      for (int k = 0; k < columns_; ++k)
        panel[k / 4 * 4 * kPanel + n % kPanel * 4 + k % 4] = static_cast<int8_t>(levels[k]);
      offsets_[n] = -(kLevels + 1) * std::accumulate(levels.begin(), levels.end(), 0);
    }
  }

  // A row of W to levels, of which `tile` can add up four products in 16 bits; what a level is worth, or NaN or
  // infinity where the row is not finite.
  float round_weights(const float* row, std::vector<int>& levels) const {
    float scale = largest(row) / kWeightLevels;
    if (!std::isfinite(scale)) {
      std::fill(levels.begin(), levels.end(), 0);
      return scale;
    }
    for (;;) {
      int most = 0;
      for (int k = 0; k < columns_; ++k) levels[k] = static_cast<int>(std::nearbyint(row[k] / scale));
      for (int k = 0; k < columns_; k += k % 4 == 2 ? 6 : 2) {  // two columns and the two that stand four further
        int above = 0, below = 0;
        for (const int each : {k, k + 1, k + 4, k + 5}) (levels[each] > 0 ? above : below) += std::abs(levels[each]);
        most = std::max({most, above, below});
      }
      if (most <= kFourLevels) return scale;
      scale *= static_cast<float>(most + 1) / kFourLevels;
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
    rounded.x.resize(std::max(rounded.x.size(), static_cast<size_t>(m) * columns_));
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

  // The same of integers: sums of four products in 16 bits, of eight in 32.
  template <int M>
  __attribute__((noinline)) void tile(const uint8_t* x, const float* x_scales, int panel, float* y,
                                      bool positive) const {
    __m256i sums[M][2];
    const __m256i* w = reinterpret_cast<const __m256i*>(bytes_.get() + static_cast<size_t>(panel) * kPanel * columns_);
    const __m256i ones = _mm256_set1_epi16(1);
    const auto four = [x, this](int i, int k) {  // columns of a row of x, eight times
      int32_t values;
      std::memcpy(&values, x + static_cast<size_t>(i) * columns_ + k, 4);
      return _mm256_set1_epi32(values);
    };
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) sums[i][0] = sums[i][1] = _mm256_setzero_si256();
#pragma GCC unroll 1
    for (int k = 0; k < columns_; k += 8, w += 4) {
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        const __m256i here = four(i, k), further = four(i, k + 4);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const __m256i products =
              _mm256_add_epi16(_mm256_maddubs_epi16(here, w[half]), _mm256_maddubs_epi16(further, w[2 + half]));
          sums[i][half] = _mm256_add_epi32(sums[i][half], _mm256_madd_epi16(products, ones));
        }
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
    if (m == 1) return few_rows<1>(x, y, positive);
    if (m == 2) return few_rows<2>(x, y, positive);
    if (m == 3) return few_rows<3>(x, y, positive);
    for (int panel = 0; panel < panels(); ++panel) {
      const auto in = [&](int i) { return x + static_cast<size_t>(i) * columns_; };
      const auto out = [&](int i) { return y + static_cast<size_t>(i) * rows_; };
      int i = 0;
      for (; i + 6 <= m; i += 6) tile<6, 1>(in(i), panel, out(i), positive);
      if (m - i == 5) tile<5, 1>(in(i), panel, out(i), positive);
      if (m - i == 4) tile<4, 1>(in(i), panel, out(i), positive);
      if (m - i == 3) tile<3, 1>(in(i), panel, out(i), positive);
      if (m - i == 2) tile<2, 1>(in(i), panel, out(i), positive);
      if (m - i == 1) tile<1, 1>(in(i), panel, out(i), positive);
    }
  }

  void multiply_bytes(const float* x, int m, float* y, Rounded& rounded, bool positive) const {
    round(x, m, rounded);
    for (int panel = 0; panel < panels(); ++panel) {
      const auto in = [&](int i) { return rounded.x.data() + static_cast<size_t>(i) * columns_; };
      const auto out = [&](int i) { return y + static_cast<size_t>(i) * rows_; };
      int i = 0;
      for (; i + 4 <= m; i += 4) tile<4>(in(i), rounded.scales + i, panel, out(i), positive);
      if (m - i == 3) tile<3>(in(i), rounded.scales + i, panel, out(i), positive);
      if (m - i == 2) tile<2>(in(i), rounded.scales + i, panel, out(i), positive);
      if (m - i == 1) tile<1>(in(i), rounded.scales + i, panel, out(i), positive);
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
