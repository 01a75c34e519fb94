// Operators of training, forward and backward: smoothed cross-entropy, dropout, and LayerNorm(x + dropout(y)). They read
// and write fp32 or bfloat16 (T) and compute in fp32. A result does not depend on the number of threads.
#pragma once

#include <cmath>
#include <iterator>

#include "log_softmax.h"
#include "parallel.h"
#include "vectors.h"

namespace nmtkit {

struct RowLoss {
  float nll;      // -log p(target)
  float uniform;  // the mean of -log p over the W' ids that may be output
};

// The loss of one row of logits (W,), in nats. If `learning`, the gradient of (1 - ε)·nll + ε·uniform replaces the
// logits: softmax - ((1 - ε)·one-hot + ε / W'), but 0 for ids that are never output.
inline RowLoss cross_entropy(float* logits, int width, int64_t target, float smoothing, bool learning) {
  constexpr float kFarBelow = 100.0f;  // the peak: `exp` is 0 there
  mask_never_output(logits, width);
  const float wanted = logits[target], peak = reduce_max(logits, width);
  float masked = 0.0f;  // part of `deviations`
  for (const int id : kNeverOutput) masked += (logits[id] = peak - kFarBelow) - peak;
  FloatVec total = set1(0.0f), deviations = set1(0.0f);
  for_vectors(width, [&](int i, int n) {
    const FloatVec x = load_n(logits + i, n) - set1(peak), y = exp(x);
    total = total + (n == kLanes ? y : blend(y, n, set1(0.0f)));
    deviations = deviations + (n == kLanes ? x : blend(x, n, set1(0.0f)));
    if (learning) store_n(logits + i, y, n);
  });
  const float sum = reduce_add(total), log_sum = std::log(sum);
  const float W = static_cast<float>(width - static_cast<int>(std::size(kNeverOutput)));
  if (learning) {
    const FloatVec factor = set1(1.0f / sum), uniform = set1(-smoothing / W);
    for_vectors(width, [=](int i, int n) { store_n(logits + i, fma(load_n(logits + i, n), factor, uniform), n); });
    logits[target] += smoothing - 1.0f;
    for (const int id : kNeverOutput) logits[id] = 0.0f;
  }
  return {log_sum - (wanted - peak), log_sum - (reduce_add(deviations) - masked) / W};
}

// The same for logits in bfloat16; `memory` (W,) is overwritten.
inline RowLoss cross_entropy(Bf16* logits, float* memory, int width, int64_t target, float smoothing, bool learning) {
  convert(logits, memory, width);
  const RowLoss loss = cross_entropy(memory, width, target, smoothing, learning);
  if (learning) convert(memory, logits, width);
  return loss;
}

// Dropout by 16 random bits an element: the factor of element i is `scale`, but 0 where bits[i] < threshold. Without
// bits it is 1. A product, so that NaN and infinity stay visible.
struct DropoutMask {
  const int16_t* bits;
  float threshold, scale;

  FloatVec operator()(FloatVec x, size_t i, int n) const {
    return bits ? x * zero_below(set1(scale), to_float(load(bits + i, n)), threshold) : x;
  }
};

// y = x · mask, or residual + x · mask if there is a residual.
template <class T>
void dropout(const T* x, const T* residual, const DropoutMask& mask, T* y, size_t begin, int count) {
  for_vectors(count, [=](int j, int n) {
    const size_t i = begin + j;
    const FloatVec dropped = mask(load_n(x + i, n), i, n);
    store_n(y + i, residual ? load_n(residual + i, n) + dropped : dropped, n);
  });
}

// The gradient of `normalize` for one row x: `gradient` (D,) becomes grad_x; the gradients of gain and bias are added up.
template <class T>
void normalize_backward(const T* x, const Moments& row, const float* gain, const T* gradient, int count, T* grad_x,
                        float* grad_gain, float* grad_bias) {
  FloatVec sum = set1(0.0f), products = set1(0.0f);
  for_vectors(count, [&](int i, int n) {  // lanes beyond a row load 0
    const FloatVec g = load_n(gradient + i, n), normal = row.normalize(load_n(x + i, n));
    const FloatVec scaled = g * load_n(gain + i, n);
    sum = sum + scaled;
    products = fma(scaled, normal, products);
    store_n(grad_gain + i, fma(g, normal, load_n(grad_gain + i, n)), n);
    store_n(grad_bias + i, load_n(grad_bias + i, n) + g, n);
  });
  const float D = static_cast<float>(count);
  const FloatVec mean = set1(reduce_add(sum) / D), slope = set1(-reduce_add(products) / D);
  for_vectors(count, [=](int i, int n) {
    const FloatVec centred = load_n(gradient + i, n) * load_n(gain + i, n) - mean;
    store_n(grad_x + i, fma(row.normalize(load_n(x + i, n)), slope, centred) * set1(row.rstd), n);
  });
}

constexpr int kNormBlock = 64;  // rows whose gradients of gain and bias are added up first, whatever the threads

inline int norm_blocks(int rows) { return (rows + kNormBlock - 1) / kNormBlock; }

// LayerNorm(x + dropout(y)) and its gradient, for rows of D elements.
template <class T>
struct ResidualNorm {
  int rows, D;
  DropoutMask mask;
  const float* gain;

  // sum (N, D) and rows' moments (N,) are kept for the backward pass.
  void forward(const T* x, const T* y, const float* bias, float epsilon, T* sum, Moments* of_rows, T* result,
               int threads) const {
    team_for(norm_blocks(rows), threads, [&](int block, int) {
      for (int r = block * kNormBlock; r < std::min(rows, (block + 1) * kNormBlock); ++r) {
        const size_t at = static_cast<size_t>(r) * D;
        dropout<T>(y, x, mask, sum, at, D);
        of_rows[r] = normalize(sum + at, gain, bias, epsilon, D, result + at);
      }
    });
  }

  // Without dropout, grad_y may be grad_x. Throws std::bad_alloc.
  void backward(const T* gradient, const T* sum, const Moments* of_rows, T* grad_x, T* grad_y, float* grad_gain,
                float* grad_bias, int threads) const {
    std::vector<float> partial(static_cast<size_t>(norm_blocks(rows)) * 2 * D);  // gradients of gain and bias by block
    team_for(norm_blocks(rows), threads, [&](int block, int) {
      float* sums = partial.data() + static_cast<size_t>(block) * 2 * D;
      for (int r = block * kNormBlock; r < std::min(rows, (block + 1) * kNormBlock); ++r) {
        const size_t at = static_cast<size_t>(r) * D;
        normalize_backward(sum + at, of_rows[r], gain, gradient + at, D, grad_x + at, sums, sums + D);
        if (mask.bits) dropout<T>(grad_x, nullptr, mask, grad_y, at, D);
      }
    });
    std::fill_n(grad_gain, D, 0.0f);
    std::fill_n(grad_bias, D, 0.0f);
    for (int block = 0; block < norm_blocks(rows); ++block) {
      add_in_place(partial.data() + static_cast<size_t>(block) * 2 * D, grad_gain, D);
      add_in_place(partial.data() + static_cast<size_t>(block) * 2 * D + D, grad_bias, D);
    }
  }
};

}  // namespace nmtkit
