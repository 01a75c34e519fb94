// Multi-head attention (§3.2) of short sequences in training, forward and backward. It reads and writes fp32 or bfloat16
// (T) and computes in fp32.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "memory.h"
#include "parallel.h"
#include "vectors.h"

namespace nmtkit {

// The rows of one head: row i begins `stride` elements after row i - 1.
template <class T>
struct Rows {
  T* data;
  ptrdiff_t stride;

  T* operator[](int i) const { return data + i * stride; }
};

// Queries, keys or values (B, T, H, width): the heads of a position side by side, and `stride` elements from one
// position to the next.
template <class T>
struct Heads {
  T* data;
  ptrdiff_t stride;

  // One head of the sentence that begins at that position.
  Rows<T> operator()(ptrdiff_t position, int head, int width) const {
    return {data + position * stride + head * width, stride};
  }
};

// A copy in fp32 without gaps, followed by the next free memory. Rows at large strides would share few sets of the L1
// cache.
template <class T>
Rows<const float> pack(Rows<const T> rows, int count, int width, float*& memory) {
  float* begin = memory;
  for (int i = 0; i < count; ++i, memory += width) convert(rows[i], memory, width);
  return {begin, width};
}

// As `pack`, but fp32 is not copied, since each row is read only once.
inline Rows<const float> pack_bf16(Rows<const float> rows, int, int, float*&) { return rows; }
inline Rows<const float> pack_bf16(Rows<const Bf16> rows, int count, int width, float*& memory) {
  return pack(rows, count, width, memory);
}

// out[q][j] = scale · a[q]·b[j] for q < Q and j < count, in fours: out needs room for them.
template <int Q>
void dot_products(Rows<const float> a, Rows<const float> b, int width, int count, float scale, Rows<float> out) {
  for (int j = 0; j < count; j += 4) {
    FloatVec products[Q][4];
    for (auto& of_query : products)
      for (auto& sum : of_query) sum = set1(0.0f);
    const float* rows[4];
    for (int p = 0; p < 4; ++p) rows[p] = b[std::min(j + p, count - 1)];
    for_vectors(width, [&](int k, int n) {
      FloatVec left[Q];
      for (int q = 0; q < Q; ++q) left[q] = load_n(a[q] + k, n);
      for (int p = 0; p < 4; ++p) {
        const FloatVec right = load_n(rows[p] + k, n);
        for (int q = 0; q < Q; ++q) products[q][p] = fma(left[q], right, products[q][p]);
      }
    });
    for (int q = 0; q < Q; ++q) reduce_add4(products[q], scale, out[q] + j);
  }
}

// out[m] = Σ weights[m · of_sum + i · of_row] · rows[i] for m < M, over the rows from begin to end.
template <int M, class T>
void weighted_sums(const float* weights, ptrdiff_t of_sum, ptrdiff_t of_row, Rows<const float> rows, int begin, int end,
                   int width, Rows<T> out) {
  constexpr int kVectors = kAccumulators / M;
  const auto columns = [&](int v, int n, auto vectors) {
    FloatVec sums[M][vectors.value];
    for (auto& sum : sums)
      for (auto& part : sum) part = set1(0.0f);
    for (int i = begin; i < end; ++i) {
      FloatVec factors[M];
      for (int m = 0; m < M; ++m) factors[m] = set1(weights[m * of_sum + i * of_row]);
      for (int j = 0; j < vectors.value; ++j) {
        const FloatVec value = load_n(rows[i] + v + j * kLanes, n);
        for (int m = 0; m < M; ++m) sums[m][j] = fma(factors[m], value, sums[m][j]);
      }
    }
    for (int m = 0; m < M; ++m)
      for (int j = 0; j < vectors.value; ++j) store_n(out[m] + v + j * kLanes, sums[m][j], n);
  };
  int v = 0;
  for (; v + kVectors * kLanes <= width; v += kVectors * kLanes)
    columns(v, kLanes, std::integral_constant<int, kVectors>());
  for_vectors(width - v, [&](int j, int n) { columns(v + j, n, std::integral_constant<int, 1>()); });
}

// Call body(first, Q) for tiles of rows, Q being a constant.
template <class Body>
void for_tiles(int count, Body body) {
  int first = 0;
  for (; first + kQueryTile <= count; first += kQueryTile) body(first, std::integral_constant<int, kQueryTile>());
  for (; first < count; ++first) body(first, std::integral_constant<int, 1>());
}

template <class T>
Rows<T> from(Rows<T> rows, int first) {
  return {rows[first], rows.stride};
}

// The shape of an attention: B sentences, H heads, Q queries, S keys, widths K of a key and V of a value.
struct AttentionShape {
  int B, H, Q, S, K, V;

  // Floats of a row of weights: whole vectors.
  int row() const { return (S + kLanes - 1) / kLanes * kLanes; }
  // Floats of the weights of one head of one sentence.
  size_t head_size() const { return checked_product(Q, row()); }
  size_t weights_size() const { return checked_product(checked_product(B, H), head_size()); }
};

// softmax(Q·Kᵀ / √K)·V of sentences that are too short for blocks: all weights of a head stay in the L1 cache.
template <class T>
struct ShortAttention {
  AttentionShape shape;
  bool causal;
  const bool* mask;  // (B, S): which keys may be attended to; or null
  Heads<const T> queries, keys, values;

  // heads (B, Q, H, V); the weights (B, H, Q, row) are kept for the backward pass.
  void forward(Heads<T> heads, float* weights, int threads) const {
    const auto [B, H, Q, S, K, V] = shape;
    const size_t packed = checked_product(S, K + V) + checked_product(Q, K);
    std::vector<std::vector<float>> memory(std::max(threads, 1), std::vector<float>(packed));
    team_for(B * H, threads, [&, H = H, Q = Q, S = S, K = K, V = V](int task, int thread) {
      const int b = task / H, h = task % H, used = used_keys(b);
      float* free = memory[thread].data();
      const auto k = pack(keys(b * S, h, K), used, K, free), v = pack(values(b * S, h, V), used, V, free);
      const auto q = pack_bf16(queries(b * Q, h, K), Q, K, free);
      const Rows<float> own{weights + task * shape.head_size(), shape.row()};
      score(q, k, K, used, scale(), own);
      for (int t = 0; t < Q; ++t) {
        hide(own[t], b, visible(t, used));
        softmax(own[t], shape.row());
      }
      sum_rows({own.data, own.stride}, v, V, used, heads(b * Q, h, V));
    });
  }

  // The gradients of queries, keys and values, from that of the heads.
  void backward(Heads<const T> gradient, const float* weights, Heads<T> grad_queries, Heads<T> grad_keys,
                Heads<T> grad_values, int threads) const {
    const auto [B, H, Q, S, K, V] = shape;
    const size_t packed = checked_product(size_t{1} * S + Q, K + V);
    std::vector<std::vector<float>> memory(std::max(threads, 1), std::vector<float>(shape.head_size() + packed));
    team_for(B * H, threads, [&, H = H, Q = Q, S = S, K = K, V = V](int task, int thread) {
      const int b = task / H, h = task % H, used = used_keys(b), row = shape.row();
      const Rows<const float> own{weights + task * shape.head_size(), row};
      float* free = memory[thread].data();
      const auto q = pack(queries(b * Q, h, K), Q, K, free), k = pack(keys(b * S, h, K), used, K, free);
      const auto v = pack(values(b * S, h, V), used, V, free), g = pack(gradient(b * Q, h, V), Q, V, free);
      const Rows<float> of_scores{free, row};  // their gradients
      score(g, v, V, used, 1.0f, of_scores);
      for (int t = 0; t < Q; ++t) softmax_backward(own[t], of_scores[t], visible(t, used));
      sum_rows({of_scores.data, row}, k, K, used, grad_queries(b * Q, h, K));
      for_tiles(S, [&](int j, auto tile) {
        const int end = j < used ? Q : 0, begin = causal ? std::min(j, end) : 0;
        weighted_sums<tile.value, T>(of_scores.data + j, 1, row, q, begin, end, K,
                                  from(grad_keys(b * S, h, K), j));
        weighted_sums<tile.value, T>(own.data + j, 1, row, g, begin, end, V,
                                  from(grad_values(b * S, h, V), j));
      });
    });
  }

 private:
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape.K)); }

  // The keys of sentence b up to the last that may be attended to.
  int used_keys(int b) const {
    int keys = shape.S;
    while (mask && keys > 0 && !mask[static_cast<size_t>(b) * shape.S + keys - 1]) --keys;
    return keys;
  }

  // The keys that query t sees, of those used.
  int visible(int t, int used) const { return causal ? std::min(t + 1, used) : used; }

  // out[t][j] = factor · a[t]·b[j] for the keys j that a query t, or one of its tile, sees.
  void score(Rows<const float> a, Rows<const float> b, int width, int used, float factor, Rows<float> out) const {
    for_tiles(shape.Q, [&](int t, auto tile) {
      dot_products<tile.value>(from(a, t), b, width, visible(t + tile.value - 1, used), factor, from(out, t));
    });
  }

  // out[t] = Σ weights[t][j] · rows[j] over the keys j that query t sees.
  void sum_rows(Rows<const float> weights, Rows<const float> rows, int width, int used, Rows<T> out) const {
    for_tiles(shape.Q, [&](int t, auto tile) {
      weighted_sums<tile.value, T>(weights[t], weights.stride, 1, rows, 0, visible(t + tile.value - 1, used), width,
                                from(out, t));
    });
  }

  // Scores that the softmax must not see become -infinity: those beyond `count`, and masked ones.
  void hide(float* scores, int b, int count) const {
    std::fill(scores + count, scores + shape.row(), -kInfinity);
    for (int j = 0; mask && j < count; ++j)
      if (!mask[static_cast<size_t>(b) * shape.S + j]) scores[j] = -kInfinity;
  }

  // The gradient of a row of weights becomes that of its scores before they were scaled.
  void softmax_backward(const float* weights, float* gradient, int count) const {
    const int row = shape.row();
    std::fill(gradient + count, gradient + row, 0.0f);
    FloatVec products = set1(0.0f);
    for_vectors(row, [&](int j, int n) { products = fma(load_n(weights + j, n), load_n(gradient + j, n), products); });
    const FloatVec mean = set1(reduce_add(products)), factor = set1(scale());
    for_vectors(row, [=](int j, int n) {
      store_n(gradient + j, load_n(weights + j, n) * (load_n(gradient + j, n) - mean) * factor, n);
    });
  }
};

}  // namespace nmtkit
