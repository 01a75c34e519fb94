// x·Wᵀ + b for many x and one W, which is laid out once for the products to come.
//
// A row of the result depends on its row of x alone, to the last bit, whatever rows stand beside it: each sum runs over
// the columns in their order. So no batch, and no number of threads, changes what a sentence becomes.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "memory.h"
#include "vectors.h"

namespace nmtkit {

constexpr int kPanel = 2 * kLanes;  // rows of W that stand together: two vectors of a result
constexpr int kBlock = 120;         // rows of x that one pass over W serves: they stay in the nearer caches
constexpr int kWeightLevels = 127;  // of a weight in 8 bits, to each side of 0, at most
constexpr int kDepth = 8;           // columns that integer sums take at once
constexpr int kMostRows = 1 << 30;         // of W: padded to panels they fit into an int
constexpr int kMostColumns = 1 << 24;      // of W: a panel's numbers fit into an int
constexpr int kMostByteColumns = 1 << 16;  // of W in 8 bits: sums of products fit into 32 bits

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

template <class T>
using Aligned = std::unique_ptr<T[], Free>;

// Zeros, aligned for vectors. Throws std::bad_alloc.
template <class T>
Aligned<T> aligned(size_t count) {
  const size_t bytes = (product(count, sizeof(T)) + 63) / 64 * 64;
  void* memory = std::aligned_alloc(64, std::max<size_t>(bytes, 64));
  if (!memory) throw std::bad_alloc();
  std::memset(memory, 0, bytes);
  return Aligned<T>(static_cast<T*>(memory));
}

// What a thread needs for the products of a block of rows.
struct Rounded {
  std::vector<int32_t> x;     // four columns in each, as bytes: level + kLevels + 1
  float scales[kBlock] = {};  // of each row

  // Room for m rows, kBlock of them at most. Throws std::bad_alloc.
  void reserve(size_t m, int columns) { x.resize(std::max(x.size(), std::min<size_t>(m, kBlock) * groups(columns))); }

  static int groups(int columns) { return (columns + kDepth - 1) / kDepth * (kDepth / 4); }
};

// Weights that the products to come will read, to be asked for while others are computed: of few rows, products would
// wait for them longer than they take.
struct Ahead {
  static constexpr int kLine = 64;  // bytes

  const char* at = nullptr;
  int lines = 0;  // for each kDepth columns

  void ask() {
    for (int i = 0; i < lines; ++i, at += kLine) __builtin_prefetch(at, 0, 2);
  }
};

class Matrix {
 public:
  // weight (N, K) and bias (N), or null. With `eight_bits`, each row of W is rounded to integers by its own largest
  // value, and each row of x as it comes; their sums are exact. Throws TooLarge, std::bad_alloc.
  Matrix(const float* weight, const float* bias, int rows, int columns, bool eight_bits)
      : rows_(rows), columns_(columns), eight_bits_(eight_bits) {
    if (rows < 1 || columns < 1 || rows > kMostRows || columns > (eight_bits ? kMostByteColumns : kMostColumns))
      throw TooLarge("there is no room for a matrix of " + std::to_string(rows) + " x " + std::to_string(columns));
    bias_ = aligned<float>(padded());
    if (bias) std::copy(bias, bias + rows, bias_.get());
    if (eight_bits)
      lay_out_bytes(weight);
    else
      lay_out_floats(weight);
  }

  int rows() const { return rows_; }
  int columns() const { return columns_; }
  bool eight_bits() const { return eight_bits_; }

  // y (m, N) = x (m, K)·Wᵀ + b, or its positive part.
  void multiply(const float* x, int m, float* y, Rounded& rounded, bool positive = false) const {
    for (int i = 0; i < m; i += kBlock) {
      const int count = std::min(kBlock, m - i);
      const float* in = x + static_cast<size_t>(i) * columns_;
      float* out = y + static_cast<size_t>(i) * rows_;
      if (eight_bits_) {
        round(in, count, rounded);
        tiles<kByteTileRows>(Bytes{rounded.x.data(), rounded.scales}, count, out, positive);
      } else {
        tiles<kTileRows>(in, count, out, positive);
      }
    }
  }

 private:
  // Rows of x in 8 bits.
  struct Bytes {
    const int32_t* x;
    const float* scales;
  };

  int panels() const { return (rows_ + kPanel - 1) / kPanel; }
  size_t padded() const { return static_cast<size_t>(panels()) * kPanel; }
  int groups() const { return Rounded::groups(columns_); }

  // Panel by panel; in a panel column by column, each of kPanel rows of W.
  void lay_out_floats(const float* weight) {
    floats_ = aligned<float>(product(padded(), columns_));
    for (int n = 0; n < rows_; ++n) {
      float* panel = floats_.get() + static_cast<size_t>(n / kPanel) * kPanel * columns_;
      for (int k = 0; k < columns_; ++k) panel[k * kPanel + n % kPanel] = weight[static_cast<size_t>(n) * columns_ + k];
    }
  }

  // Panel by panel; in a panel by four columns, of kPanel rows of W each.
  void lay_out_bytes(const float* weight) {
    const size_t step = static_cast<size_t>(kPanel) * groups() * 4;
    bytes_ = aligned<int8_t>(product(panels(), step));
    scales_ = aligned<float>(padded());
    offsets_ = aligned<int32_t>(padded());
    std::vector<int> levels(groups() * 4);
    for (int n = 0; n < rows_; ++n) {
      int8_t* panel = bytes_.get() + n / kPanel * step;
      scales_[n] = round_weights(weight + static_cast<size_t>(n) * columns_, levels);
      for (int k = 0; k < columns_; ++k)
        panel[k / 4 * 4 * kPanel + n % kPanel * 4 + k % 4] = static_cast<int8_t>(levels[k]);
      offsets_[n] = -(kLevels + 1) * std::accumulate(levels.begin(), levels.end(), 0);
    }
  }

  // A row of W to levels, of which `add_products` can add up four products; what a level is worth, or NaN or infinity
  // where the row is not finite.
  float round_weights(const float* row, std::vector<int>& levels) const {
    float scale = largest(row) / kWeightLevels;
    std::fill(levels.begin(), levels.end(), 0);
    if (!std::isfinite(scale)) return scale;
    for (;;) {
      int most = 0;
      for (int k = 0; k < columns_; ++k) levels[k] = static_cast<int>(std::nearbyint(row[k] / scale));
      for (size_t k = 0; k < levels.size(); k += k % 4 == 2 ? 6 : 2) {  // two columns and the two that stand four further
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
    Floats peaks = every(1e-30f), total = every(0.0f);
    for_vectors(columns_, [&](int k, int n) {
      const Floats x = magnitude(load_some(row + k, n));
      peaks = max(peaks, x);
      total = total + x;
    });
    return any_nan(total) ? std::numeric_limits<float>::quiet_NaN() : greatest(peaks);
  }

  void round(const float* x, int m, Rounded& rounded) const {
    rounded.reserve(m, columns_);
    for (int i = 0; i < m; ++i) {
      const float* row = x + static_cast<size_t>(i) * columns_;
      uint8_t* levels = reinterpret_cast<uint8_t*>(rounded.x.data() + static_cast<size_t>(i) * groups());
      const float peak = largest(row);
      rounded.scales[i] = peak / kLevels;
      const Floats factor = every(kLevels / peak);
      for_vectors(columns_, [=](int k, int n) {
        store_bytes(levels + k, plus(integers(load_some(row + k, n) * factor), every(kLevels + 1)), n);
      });
    }
  }

  // Write two vectors of a row of y, but for what lies beyond its end.
  void write(Floats first, Floats second, int panel, float* row, bool positive) const {
    if (positive) {
      first = max(every(0.0f), first);  // in this order NaN stays NaN
      second = max(every(0.0f), second);
    }
    float* to = row + panel * kPanel;
    const int left = rows_ - panel * kPanel;
    if (left >= kPanel) {
      store(to, first);
      store(to + kLanes, second);
    } else {
      store(to, first, std::min(left, kLanes));
      if (left > kLanes) store(to + kLanes, second, left - kLanes);
    }
  }

  // The products of M rows of x with P panels of W, whose sums stay in registers.
  template <int M, int P>
  __attribute__((noinline)) void tile(const float* x, int panel, float* y, bool positive, Ahead ahead) const {
    Floats sums[M][P][2];
    const size_t step = static_cast<size_t>(kPanel) * columns_;
    const float* w = floats_.get() + panel * step;
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) sums[i][p][0] = sums[i][p][1] = every(0.0f);
#pragma GCC unroll 1
    for (int k = 0; k < columns_; ++k, w += kPanel) {
      if (k % kDepth == 0) ahead.ask();
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const Floats first = load(w + p * step), second = load(w + p * step + kLanes);
#pragma GCC unroll 16
        for (int i = 0; i < M; ++i) {
          const Floats value = every(x[static_cast<size_t>(i) * columns_ + k]);
          sums[i][p][0] = fma(value, first, sums[i][p][0]);
          sums[i][p][1] = fma(value, second, sums[i][p][1]);
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const float* bias = bias_.get() + (panel + p) * kPanel;
        write(sums[i][p][0] + load(bias), sums[i][p][1] + load(bias + kLanes), panel + p,
              y + static_cast<size_t>(i) * rows_, positive);
      }
  }

  // The same of integers.
  template <int M, int P>
  __attribute__((noinline)) void tile(Bytes in, int panel, float* y, bool positive, Ahead ahead) const {
    Integers sums[M][P][2];
    const int step = groups();
    const size_t panel_bytes = static_cast<size_t>(kPanel) * step * 4;
    const int8_t* w = bytes_.get() + panel * panel_bytes;
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) sums[i][p][0] = sums[i][p][1] = every(0);
#pragma GCC unroll 1
    for (int k = 0; k < step; k += 2, w += 8 * kPanel) {
      ahead.ask();
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        Integers weights[4];  // of four columns, the two vectors of each; then of four more
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) weights[v] = load(w + p * panel_bytes + v * kLanes * 4);
#pragma GCC unroll 16
        for (int i = 0; i < M; ++i) {
          const Integers here = every(in.x[static_cast<size_t>(i) * step + k]);
          const Integers further = every(in.x[static_cast<size_t>(i) * step + k + 1]);
          sums[i][p][0] = add_products(sums[i][p][0], here, weights[0], further, weights[2]);
          sums[i][p][1] = add_products(sums[i][p][1], here, weights[1], further, weights[3]);
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        Floats results[2];
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const int n = (panel + p) * kPanel + half * kLanes;
          const Integers total = plus(sums[i][p][half], load(offsets_.get() + n));
          const Floats scale = load(scales_.get() + n) * every(in.scales[i]);
          results[half] = fma(floats(total), scale, load(bias_.get() + n));
        }
        write(results[0], results[1], panel + p, y + static_cast<size_t>(i) * rows_, positive);
      }
  }

  const float* further(const float* x, int i) const { return x + static_cast<size_t>(i) * columns_; }
  Bytes further(Bytes in, int i) const { return {in.x + static_cast<size_t>(i) * groups(), in.scales + i}; }

  // m rows of x, at most `Most` at a time and all times about as many, panel by panel.
  template <int Most, class Rows>
  void tiles(Rows x, int m, float* y, bool positive) const {
    if (m < 4) return few_rows<3>(x, m, y, positive);
    const int count = (m + Most - 1) / Most;
    for (int panel = 0; panel < panels(); ++panel)
      for (int t = 0; t < count; ++t) {
        const int i = m * t / count;
        tile_of<Most>(m * (t + 1) / count - i, further(x, i), panel, y + static_cast<size_t>(i) * rows_, positive,
                      ahead(panel + 1, t, count));
      }
  }

  // The part of a panel that tile t of `count` asks for.
  Ahead ahead(int panel, int t, int count) const {
    if (panel == panels()) return {};
    const size_t columns = eight_bits_ ? groups() * 4 : columns_, bytes = kPanel * (eight_bits_ ? 1 : sizeof(float));
    const int all = static_cast<int>(bytes) * kDepth / Ahead::kLine, each = (all + count - 1) / count;
    const int lines = std::min(each, all - t * each);
    if (lines <= 0) return {};
    const char* start = eight_bits_ ? reinterpret_cast<const char*>(bytes_.get())
                                    : reinterpret_cast<const char*>(floats_.get());
    const size_t asked_for = columns / kDepth * t * each * Ahead::kLine;
    return {start + panel * bytes * columns + asked_for, lines};
  }

  // The tile of m rows, M at most.
  template <int M, class Rows>
  void tile_of(int m, Rows x, int panel, float* y, bool positive, Ahead ahead) const {
    if constexpr (M > 0) {
      if (m == M) return tile<M, 1>(x, panel, y, positive, ahead);
      tile_of<M - 1>(m, x, panel, y, positive, ahead);
    }
  }

  // Of few rows several panels at once, since a sum waits for the one before.
  template <int M, class Rows>
  void few_rows(Rows x, int m, float* y, bool positive) const {
    if constexpr (M > 0) {
      if (m != M) return few_rows<M - 1>(x, m, y, positive);
      constexpr int P = 4 / M;
      int panel = 0;
      for (; panel + P <= panels(); panel += P) tile<M, P>(x, panel, y, positive, {});
      for (; panel < panels(); ++panel) tile<M, 1>(x, panel, y, positive, {});
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
