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

// The shape of an attention: B sentences, H heads, widths K of a key and V of a value. The queries and the keys of a
// sentence are successive positions: those from starts[b] to starts[b + 1] - 1.
struct AttentionShape {
  int B, H, K, V;
  const int32_t *query_starts, *key_starts;  // (B + 1,)

  int queries(int b) const { return query_starts[b + 1] - query_starts[b]; }
  int keys(int b) const { return key_starts[b + 1] - key_starts[b]; }
  // Floats of a row of weights: whole vectors.
  int row(int b) const { return (keys(b) + kLanes - 1) / kLanes * kLanes; }
  // Floats of the weights of one head of one sentence.
  size_t head_size(int b) const { return checked_product(queries(b), row(b)); }
  // (B + 1,) where the weights of each sentence begin, and their size.
  std::vector<size_t> weight_begins() const {
    std::vector<size_t> begins(B + 1, 0);
    for (int b = 0; b < B; ++b) begins[b + 1] = begins[b] + checked_product(H, head_size(b));
    return begins;
  }
};

// softmax(Q·Kᵀ / √K)·V of sentences that are too short for blocks: all weights of a head stay in the L1 cache.
template <class T>
class ShortAttention {
 public:
  // `mask` (of all keys) tells which may be attended to; or is null.
  ShortAttention(const AttentionShape& shape, bool causal, const bool* mask, Heads<const T> queries,
                 Heads<const T> keys, Heads<const T> values)
      : shape_(shape), causal_(causal), mask_(mask), queries_(queries), keys_(keys), values_(values) {}

  // heads (queries, H, V); the weights, (Q, row) for each sentence and head, are kept for the backward pass.
  void forward(Heads<T> heads, float* weights, int threads) const {
    const int K = shape_.K, V = shape_.V;
    for_heads(threads, 0, weights, [&](const Head& head, float* free) {
      const auto [b, h, Q, S, used, row, query, key, own] = head;
      const auto k = pack(keys_(key, h, K), used, K, free), v = pack(values_(key, h, V), used, V, free);
      const auto q = pack_bf16(queries_(query, h, K), Q, K, free);
      score(head, q, k, K, scale(), own);
      for (int t = 0; t < Q; ++t) {
        hide(own[t], head, visible(t, used));
        softmax(own[t], row);
      }
      sum_rows(head, {own.data, own.stride}, v, V, heads(query, h, V));
    });
  }

  // The gradients of queries, keys and values, from that of the heads.
  void backward(Heads<const T> gradient, float* weights, Heads<T> grad_queries, Heads<T> grad_keys,
                Heads<T> grad_values, int threads) const {
    const int K = shape_.K, V = shape_.V;
    for_heads(threads, 1, weights, [&](const Head& head, float* free) {
      const auto [b, h, Q, S, used, row, query, key, own] = head;
      const auto q = pack(queries_(query, h, K), Q, K, free), k = pack(keys_(key, h, K), used, K, free);
      const auto v = pack(values_(key, h, V), used, V, free), g = pack(gradient(query, h, V), Q, V, free);
      const Rows<float> of_scores{free, row};  // their gradients
      score(head, g, v, V, 1.0f, of_scores);
      for (int t = 0; t < Q; ++t) softmax_backward(own[t], of_scores[t], visible(t, used), row);
      sum_rows(head, {of_scores.data, row}, k, K, grad_queries(query, h, K));
      const auto of_keys = grad_keys(key, h, K), of_values = grad_values(key, h, V);
      for_tiles(S, [&, Q = Q, used = used, row = row, own = own](int j, auto tile) {
        const int end = j < used ? Q : 0, begin = causal_ ? std::min(j, end) : 0;
        weighted_sums<tile.value, T>(of_scores.data + j, 1, row, q, begin, end, K, from(of_keys, j));
        weighted_sums<tile.value, T>(own.data + j, 1, row, g, begin, end, V, from(of_values, j));
      });
    });
  }

 private:
  // One head of one sentence.
  struct Head {
    int b, h, queries, keys, used_keys, row;
    ptrdiff_t query, key;  // the first
    Rows<float> weights;
  };

  // Call body(head, memory) for each head of each sentence. The memory has room for the packed queries, keys and values,
  // and with `backward` for their gradients and those of the weights.
  template <class Body>
  void for_heads(int threads, int backward, float* weights, Body body) const {
    const std::vector<size_t> begins = shape_.weight_begins();
    size_t most = 0;
    for (int b = 0; b < shape_.B; ++b) {
      const size_t positions = size_t{1} * shape_.keys(b) + shape_.queries(b);
      most = std::max(most, checked_product(positions, shape_.K + shape_.V) + backward * shape_.head_size(b));
    }
    std::vector<std::vector<float>> memory(std::max(threads, 1), std::vector<float>(most));
    team_for(shape_.B * shape_.H, threads, [&](int task, int thread) {
      const int b = task / shape_.H, h = task % shape_.H, row = shape_.row(b);
      const ptrdiff_t query = shape_.query_starts[b], key = shape_.key_starts[b];
      float* own = weights + begins[b] + h * shape_.head_size(b);
      body(Head{b, h, shape_.queries(b), shape_.keys(b), used_keys(b), row, query, key, {own, row}},
           memory[thread].data());
    });
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.K)); }

  // The keys of sentence b up to the last that may be attended to.
  int used_keys(int b) const {
    int keys = shape_.keys(b);
    while (mask_ && keys > 0 && !mask_[shape_.key_starts[b] + keys - 1]) --keys;
    return keys;
  }

  // The keys that query t sees, of those used.
  int visible(int t, int used) const { return causal_ ? std::min(t + 1, used) : used; }

  // out[t][j] = factor · a[t]·b[j] for the keys j that a query t, or one of its tile, sees.
  void score(const Head& head, Rows<const float> a, Rows<const float> b, int width, float factor,
             Rows<float> out) const {
    for_tiles(head.queries, [&](int t, auto tile) {
      const int count = visible(t + tile.value - 1, head.used_keys);
      dot_products<tile.value>(from(a, t), b, width, count, factor, from(out, t));
    });
  }

  // out[t] = Σ weights[t][j] · rows[j] over the keys j that query t sees.
  void sum_rows(const Head& head, Rows<const float> weights, Rows<const float> rows, int width, Rows<T> out) const {
    for_tiles(head.queries, [&](int t, auto tile) {
      const int count = visible(t + tile.value - 1, head.used_keys);
      weighted_sums<tile.value, T>(weights[t], weights.stride, 1, rows, 0, count, width, from(out, t));
    });
  }

  // Scores that the softmax must not see become -infinity: those beyond `count`, and masked ones.
  void hide(float* scores, const Head& head, int count) const {
    std::fill(scores + count, scores + head.row, -kInfinity);
    for (int j = 0; mask_ && j < count; ++j)
      if (!mask_[head.key + j]) scores[j] = -kInfinity;
  }

  // The gradient of a row of weights becomes that of its scores before they were scaled.
  void softmax_backward(const float* weights, float* gradient, int count, int row) const {
    std::fill(gradient + count, gradient + row, 0.0f);
    FloatVec products = set1(0.0f);
    for_vectors(row, [&](int j, int n) { products = fma(load_n(weights + j, n), load_n(gradient + j, n), products); });
    const FloatVec mean = set1(reduce_add(products)), factor = set1(scale());
    for_vectors(row, [=](int j, int n) {
      store_n(gradient + j, load_n(weights + j, n) * (load_n(gradient + j, n) - mean) * factor, n);
    });
  }

  AttentionShape shape_;
  bool causal_;
  const bool* mask_;
  Heads<const T> queries_, keys_, values_;
};

}  // namespace nmtkit
