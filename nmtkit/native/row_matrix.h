// x·wᵀ + b for chosen rows w of a matrix that is stored row by row: the output for the tokens of a shortlist.
//
// A result depends on its row of x and its row of W alone, to the last bit. So a translation does not depend on its
// batch or on the number of threads.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "matrix.h"

namespace nmtkit {

class RowMatrix {
 public:
  // A copy of W (N, K) and b. Throws TooLarge, std::bad_alloc.
  explicit RowMatrix(const Matrix& matrix)
      : rows_(matrix.rows()), columns_(matrix.columns()), scales_(make_aligned<Matrix::Scale>(rows_)) {
    pack(matrix);
  }

  int rows() const { return rows_; }

  // Inputs for `multiply`: memory that steps reuse.
  struct Input {
    const float* x = nullptr;  // (m, K)
    std::vector<int32_t> pairs;
    std::vector<float> scales;
  };

  // For at most m rows of x. Throws std::bad_alloc.
  void reserve(Input& input, int m) const {
    if (!is_int8()) return;
    input.pairs.resize(std::max(input.pairs.size(), static_cast<size_t>(m) * row_groups()));
    input.scales.resize(std::max<size_t>(input.scales.size(), m));
  }

  // Set the input to x (m, K), m <= kRowBlock, which stays where it is. `quantized` is memory for x in int8.
  void prepare(const float* x, int m, QuantizedInput& quantized, Input& input) const {
    input.x = x;
    if (!is_int8()) return;
    quantized.quantize(x, m, columns_);
    const int groups = column_groups(columns_);
    for (int i = 0; i < m; ++i) {
      input.scales[i] = quantized.scales[i];
      const int32_t* from = quantized.x.data() + static_cast<size_t>(i) * groups;
      int32_t* to = input.pairs.data() + static_cast<size_t>(i) * row_groups();
      for (int g = 0; g < groups; ++g) to[place(g)] = from[g];
    }
  }

  // y (m, count) = the rows of x from `first` on times the rows `ids` (count,) of W, plus b.
  void multiply(const Input& input, int first, int m, const int32_t* ids, int count, float* y) const {
    for (int j = 0; j < count; j += kWidth) {
      int32_t own[kWidth];
      for (int p = 0; p < kWidth; ++p) {
        own[p] = ids[std::min(j + p, count - 1)];
        prefetch_row(ids[std::min(j + kWidth + p, count - 1)]);
      }
      const int width = std::min(kWidth, count - j);
      for (int i = 0; i < m; i += kHeight)
        select_tile<kHeight>(input, first + i, std::min(kHeight, m - i), own, width,
                             y + static_cast<size_t>(i) * count + j, count);
    }
  }

 private:
  static constexpr int kWidth = 4;  // rows of W in a tile, whose sums stay in registers
  static constexpr int kHeight = kAccumulators / kWidth;

  bool is_int8() const { return int8_ != nullptr; }

  // Rows in int8 consist of pairs of vectors: the even groups of four columns, then the odd ones, so that `dot_int8`
  // adds the products of the same columns as in `Matrix`.
  int pairs() const { return (column_groups(columns_) + 2 * kLanes - 1) / (2 * kLanes); }
  int row_groups() const { return pairs() * 2 * kLanes; }
  static int place(int group) {
    return group / (2 * kLanes) * 2 * kLanes + group % 2 * kLanes + group % (2 * kLanes) / 2;
  }

  const float* fp32_row(int n) const { return fp32_.get() + static_cast<size_t>(n) * columns_; }
  const int8_t* int8_row(int n) const { return int8_.get() + static_cast<size_t>(n) * row_groups() * 4; }

  void prefetch_row(int n) const {
    is_int8() ? prefetch(int8_row(n), int8_row(n + 1)) : prefetch(fp32_row(n), fp32_row(n + 1));
  }

  void pack(const Matrix& matrix) {
    if (matrix.is_int8()) {
      int8_ = make_aligned<int8_t>(checked_product(rows_, row_groups() * 4));
    } else {
      fp32_ = make_aligned<float>(checked_product(rows_, columns_));
    }
    for (int n = 0; n < rows_; ++n) {
      scales_[n] = matrix.scale(n);
      const size_t at32 = static_cast<size_t>(n) * columns_, at8 = static_cast<size_t>(n) * row_groups() * 4;
      for (int k = 0; k < columns_; ++k)
        if (is_int8()) int8_[at8 + place(k / 4) * 4 + k % 4] = matrix.int8(n, k);
        else fp32_[at32 + k] = matrix.fp32(n, k);
    }
  }

  // The tile of m <= M rows of x and the rows `ids` of W, of which `width` are stored in rows of y that are `stride`
  // apart.
  template <int M>
  void select_tile(const Input& input, int i, int m, const int32_t (&ids)[kWidth], int width, float* y,
                   int stride) const {
    if constexpr (M > 0) {
      if (m != M) return select_tile<M - 1>(input, i, m, ids, width, y, stride);
      float sums[M][kWidth];
      is_int8() ? int8_tile(input, i, ids, sums) : fp32_tile(input, i, ids, sums);
      for (int row = 0; row < M; ++row) std::copy_n(sums[row], width, y + static_cast<size_t>(row) * stride);
    }
  }

  template <int M>
  void fp32_tile(const Input& input, int i, const int32_t (&ids)[kWidth], float (&y)[M][kWidth]) const {
    FloatVec sums[M][kWidth];
    for (auto& of_row : sums)
      for (auto& sum : of_row) sum = set1(0.0f);
    const float* x = input.x + static_cast<size_t>(i) * columns_;
    for_vectors(columns_, [&](int k, int n) {
      for (int p = 0; p < kWidth; ++p) {
        const FloatVec weights = load_n(fp32_row(ids[p]) + k, n);
        for (int row = 0; row < M; ++row)
          sums[row][p] = fma(load_n(x + static_cast<size_t>(row) * columns_ + k, n), weights, sums[row][p]);
      }
    });
    for (int row = 0; row < M; ++row) {
      reduce_add4(sums[row], 1.0f, y[row]);
      for (int p = 0; p < kWidth; ++p) y[row][p] += scales_[ids[p]].bias;
    }
  }

  template <int M>
  void int8_tile(const Input& input, int i, const int32_t (&ids)[kWidth], float (&y)[M][kWidth]) const {
    IntVec sums[M][kWidth];
    for (auto& of_row : sums)
      for (auto& sum : of_row) sum = set1(0);
    const int32_t* x = input.pairs.data() + static_cast<size_t>(i) * row_groups();
    for (int at = 0; at < row_groups(); at += 2 * kLanes)
      for (int p = 0; p < kWidth; ++p) {
        const int8_t* w = int8_row(ids[p]) + at * 4;
        const IntVec even = load(w), odd = load(w + kLanes * 4);
        for (int row = 0; row < M; ++row) {
          const int32_t* own = x + static_cast<size_t>(row) * row_groups() + at;
          sums[row][p] = dot_int8(sums[row][p], load(own), even, load(own + kLanes), odd);
        }
      }
    for (int row = 0; row < M; ++row) {
      FloatVec totals[kWidth];
      for (int p = 0; p < kWidth; ++p) totals[p] = to_float(sums[row][p]);
      reduce_add4(totals, 1.0f, y[row]);
      for (int p = 0; p < kWidth; ++p) {
        const Matrix::Scale& own = scales_[ids[p]];
        y[row][p] = std::fma(y[row][p] + own.compensation, own.scale * input.scales[i + row], own.bias);
      }
    }
  }

  int rows_, columns_;
  AlignedArray<float> fp32_;    // W, or
  AlignedArray<int8_t> int8_;   // W in int8
  AlignedArray<Matrix::Scale> scales_;  // of each row
};

}  // namespace nmtkit
