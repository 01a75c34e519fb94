// x·Wᵀ + b for many x and one W, which is packed once in the order in which products read it.
//
// A row of the result depends on its row of x alone, to the last bit: each sum runs over the columns in order. So a
// translation does not depend on its batch or on the number of threads.
#pragma once

#include <string>
#include <vector>

#include "memory.h"
#include "quantization.h"

namespace nmtkit {

constexpr int kPanel = 2 * kLanes;         // rows of W that are packed together: two vectors of a result
constexpr int kMaxRows = 1 << 30;          // of W: padded to panels they fit into an int
constexpr int kMaxColumns = 1 << 24;       // of W: the elements of a panel fit into an int
constexpr int kMaxInt8Columns = 1 << 16;  // of W in int8: sums of products fit into 32 bits

// Fetches the weights of the next products while others are computed: with few rows, products wait for memory longer
// than they compute.
struct Prefetcher {
  static constexpr int kCacheLine = 64;  // bytes

  const char* at = nullptr;
  int lines = 0;  // for each kColumnBlock

  void fetch() {
    for (int i = 0; i < lines; ++i, at += kCacheLine) __builtin_prefetch(at, 0, 2);
  }
};

class Matrix {
 public:
  // weight (N, K) and bias (N), or null. In int8, W and x are quantized row by row, and their products are exact; a
  // matrix of more than kMaxInt8Columns stays in fp32. Throws TooLarge, std::bad_alloc.
  Matrix(const WeightRows& weight, const float* bias, NumberFormat format)
      : rows_(weight.rows), columns_(weight.columns),
        is_int8_(format == NumberFormat::kInt8 && columns_ <= kMaxInt8Columns) {
    if (rows_ < 1 || columns_ < 1 || rows_ > kMaxRows || columns_ > kMaxColumns || (weight.int8 && !is_int8_))
      throw TooLarge("cannot pack a matrix of " + std::to_string(rows_) + " x " + std::to_string(columns_));
    bias_ = make_aligned<float>(padded_rows());
    if (bias) std::copy(bias, bias + rows_, bias_.get());
    is_int8_ ? pack_int8(weight) : pack_fp32(weight.fp32);
  }

  int rows() const { return rows_; }
  int columns() const { return columns_; }
  bool is_int8() const { return is_int8_; }

  // Of a row in int8, and its bias.
  struct Scale {
    float scale, bias;
    int32_t compensation;  // undoes that bytes of x are kQuantMax + 1 above their integers
  };
  Scale scale(int n) const { return is_int8_ ? Scale{scales_[n], bias_[n], compensation_[n]} : Scale{1.0f, bias_[n], 0}; }

  // Row n of W, as products have it, to `row` (K).
  void copy_row(int n, float* row) const {
    for (int k = 0; k < columns_; ++k) row[k] = is_int8_ ? scales_[n] * int8(n, k) : fp32(n, k);
  }

  // Elements of W, of the number format in which it is packed.
  float fp32(int n, int k) const { return fp32_[fp32_index(n, k)]; }
  int8_t int8(int n, int k) const { return int8_[int8_index(n, k)]; }

  // y (m, N) = x (m, K)·Wᵀ + b, or max(0, that) with `relu`. `quantized` is memory for x in int8.
  void multiply(const float* x, int m, float* y, QuantizedInput& quantized, bool relu = false) const {
    for (int i = 0; i < m; i += kRowBlock) {
      const int count = std::min(kRowBlock, m - i);
      const float* in = x + static_cast<size_t>(i) * columns_;
      float* out = y + static_cast<size_t>(i) * rows_;
      if (is_int8_) {
        quantized.quantize(in, count, columns_);
        multiply_block<kInt8TileRows>(Int8Rows{quantized.x.data(), quantized.scales}, count, out, relu);
      } else {
        multiply_block<kTileRows>(in, count, out, relu);
      }
    }
  }

 private:
  struct Int8Rows {
    const int32_t* x;
    const float* scales;
  };

  int panels() const { return (rows_ + kPanel - 1) / kPanel; }
  size_t padded_rows() const { return static_cast<size_t>(panels()) * kPanel; }
  int groups() const { return column_groups(columns_); }

  const float* skip_rows(const float* x, int i) const { return x + static_cast<size_t>(i) * columns_; }
  Int8Rows skip_rows(Int8Rows in, int i) const { return {in.x + static_cast<size_t>(i) * groups(), in.scales + i}; }

  // Panel by panel; in a panel column by column, each of kPanel rows of W.
  size_t fp32_index(int n, int k) const {
    return static_cast<size_t>(n / kPanel) * kPanel * columns_ + k * kPanel + n % kPanel;
  }

  // Panel by panel; in a panel by groups of four columns, each of kPanel rows of W.
  size_t int8_index(int n, int k) const {
    return static_cast<size_t>(n / kPanel) * kPanel * groups() * 4 + k / 4 * 4 * kPanel + n % kPanel * 4 + k % 4;
  }

  void pack_fp32(const float* weight) {
    fp32_ = make_aligned<float>(checked_product(padded_rows(), columns_));
    for (int n = 0; n < rows_; ++n)
      for (int k = 0; k < columns_; ++k) fp32_[fp32_index(n, k)] = weight[static_cast<size_t>(n) * columns_ + k];
  }

  void pack_int8(const WeightRows& weight) {
    int8_ = make_aligned<int8_t>(checked_product(padded_rows(), groups() * 4));
    scales_ = make_aligned<float>(padded_rows());
    compensation_ = make_aligned<int32_t>(padded_rows());
    std::vector<int8_t> integers(groups() * 4);
    for (int n = 0; n < rows_; ++n) {
      scales_[n] = weight.quantize(n, integers);
      int8_t* to = &int8_[int8_index(n, 0)];
      for (int k = 0; k < groups() * 4; k += 4, to += 4 * kPanel) std::memcpy(to, &integers[k], 4);
      compensation_[n] = compensation_of(integers);
    }
  }

  // Store two vectors of a row of y, but for the padding of the last panel.
  void store_result(FloatVec first, FloatVec second, int panel, float* row, bool relu) const {
    if (relu) {
      first = max(set1(0.0f), first);  // in this order NaN stays NaN
      second = max(set1(0.0f), second);
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

  // fp32 products of M rows of x with P panels of W, whose sums stay in registers.
  template <int M, int P>
  __attribute__((noinline)) void tile(const float* x, int panel, float* y, bool relu, Prefetcher prefetcher) const {
    FloatVec sums[M][P][2];
    const size_t panel_size = static_cast<size_t>(kPanel) * columns_;
    const float* w = fp32_.get() + panel * panel_size;
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) sums[i][p][0] = sums[i][p][1] = set1(0.0f);
#pragma GCC unroll 1
    for (int k = 0; k < columns_; ++k, w += kPanel) {
      if (k % kColumnBlock == 0) prefetcher.fetch();
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const FloatVec first = load(w + p * panel_size), second = load(w + p * panel_size + kLanes);
#pragma GCC unroll 16
        for (int i = 0; i < M; ++i) {
          const FloatVec value = set1(x[static_cast<size_t>(i) * columns_ + k]);
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
        store_result(sums[i][p][0] + load(bias), sums[i][p][1] + load(bias + kLanes), panel + p,
                     y + static_cast<size_t>(i) * rows_, relu);
      }
  }

  // int8 products of M rows of x with P panels of W.
  template <int M, int P>
  __attribute__((noinline)) void tile(Int8Rows in, int panel, float* y, bool relu, Prefetcher prefetcher) const {
    IntVec sums[M][P][2];
    const int groups = this->groups();
    const size_t panel_bytes = static_cast<size_t>(kPanel) * groups * 4;
    const int8_t* w = int8_.get() + panel * panel_bytes;
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) sums[i][p][0] = sums[i][p][1] = set1(0);
#pragma GCC unroll 1
    for (int k = 0; k < groups; k += 2, w += 8 * kPanel) {
      prefetcher.fetch();
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        IntVec weights[4];  // two vectors of group k, then two of group k + 1
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) weights[v] = load(w + p * panel_bytes + v * kLanes * 4);
#pragma GCC unroll 16
        for (int i = 0; i < M; ++i) {
          const IntVec x0 = set1(in.x[static_cast<size_t>(i) * groups + k]);
          const IntVec x1 = set1(in.x[static_cast<size_t>(i) * groups + k + 1]);
          sums[i][p][0] = dot_int8(sums[i][p][0], x0, weights[0], x1, weights[2]);
          sums[i][p][1] = dot_int8(sums[i][p][1], x0, weights[1], x1, weights[3]);
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        FloatVec results[2];
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half)
          results[half] = dequantize(sums[i][p][half], (panel + p) * kPanel + half * kLanes, in.scales[i]);
        store_result(results[0], results[1], panel + p, y + static_cast<size_t>(i) * rows_, relu);
      }
  }

  // The results of kLanes rows of W from the n-th on, for a row of x with this scale.
  FloatVec dequantize(IntVec sum, int n, float x_scale) const {
    const IntVec total = add(sum, load(compensation_.get() + n));
    const FloatVec scale = load(scales_.get() + n) * set1(x_scale);
    return fma(to_float(total), scale, load(bias_.get() + n));
  }

  // m rows of x in tiles of about the same size, at most MaxRows, panel by panel.
  template <int MaxRows, class Rows>
  void multiply_block(Rows x, int m, float* y, bool relu) const {
    if (m < 4) return multiply_few_rows<3>(x, m, y, relu);
    const int tiles = (m + MaxRows - 1) / MaxRows;
    for (int panel = 0; panel < panels(); ++panel)
      for (int t = 0; t < tiles; ++t) {
        const int i = m * t / tiles;
        select_tile<MaxRows>(m * (t + 1) / tiles - i, skip_rows(x, i), panel, y + static_cast<size_t>(i) * rows_, relu,
                             prefetcher(panel + 1, t, tiles));
      }
  }

  // The tile of m <= M rows.
  template <int M, class Rows>
  void select_tile(int m, Rows x, int panel, float* y, bool relu, Prefetcher prefetcher) const {
    if constexpr (M > 0) {
      if (m == M) return tile<M, 1>(x, panel, y, relu, prefetcher);
      select_tile<M - 1>(m, x, panel, y, relu, prefetcher);
    }
  }

  // m <= M rows with several panels at once, since each sum waits for the one before.
  template <int M, class Rows>
  void multiply_few_rows(Rows x, int m, float* y, bool relu) const {
    if constexpr (M > 0) {
      if (m != M) return multiply_few_rows<M - 1>(x, m, y, relu);
      constexpr int P = 4 / M;
      int panel = 0;
      for (; panel + P <= panels(); panel += P) tile<M, P>(x, panel, y, relu, {});
      for (; panel < panels(); ++panel) tile<M, 1>(x, panel, y, relu, {});
    }
  }

  // Fetches tile t's share of a panel, of so many tiles.
  Prefetcher prefetcher(int panel, int t, int tiles) const {
    if (panel == panels()) return {};
    const size_t columns = is_int8_ ? groups() * 4 : columns_, column_bytes = kPanel * (is_int8_ ? 1 : sizeof(float));
    const int lines = static_cast<int>(column_bytes) * kColumnBlock / Prefetcher::kCacheLine;
    const int share = (lines + tiles - 1) / tiles, own = std::min(share, lines - t * share);
    if (own <= 0) return {};
    const char* start =
        is_int8_ ? reinterpret_cast<const char*>(int8_.get()) : reinterpret_cast<const char*>(fp32_.get());
    const size_t skipped = columns / kColumnBlock * t * share * Prefetcher::kCacheLine;
    return {start + panel * column_bytes * columns + skipped, own};
  }

  int rows_, columns_;
  bool is_int8_;
  AlignedArray<float> bias_;
  AlignedArray<float> fp32_;            // W, or
  AlignedArray<int8_t> int8_;           // W in int8
  AlignedArray<float> scales_;          // of each row in int8
  AlignedArray<int32_t> compensation_;  // of each row: undoes that bytes of x are kQuantMax + 1 above their integers
};

}  // namespace nmtkit
