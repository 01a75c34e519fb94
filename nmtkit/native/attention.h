// Scaled dot-product attention in several heads (§3.2).
#pragma once

#include <cmath>
#include <type_traits>

#include "model.h"

namespace nmtkit {

// Rounded up to a multiple of four.
inline int padded_positions(int positions) { return (positions + 3) / 4 * 4; }

// The attention of Q queries to the same positions. The keys and values of position i stand at kv[i]: keys (H, K), then
// values (H, V), of type T. kv has four more readable pointers behind the last position.
template <class T, int Q>
class Attention {
 public:
  Attention(const Model& model, const void* const* kv, int positions)
      : H(model.heads), K(model.d_k), V(model.d_v), kv_(kv), positions_(positions),
        row_(padded_positions(positions)) {}

  // heads (Q, H, V) = softmax(q·kᵀ / √K)·v. The queries (H, K) stand `query_stride` floats apart; scores is memory for
  // (Q, H, padded_positions).
  void operator()(const float* queries, int query_stride, float* scores, float* heads) const {
    dot_products(queries, query_stride, scores);
    for (int row = 0; row < Q * H; ++row) softmax(scores + row * row_, positions_);
    int v = 0;
    if (V % kLanes == 0)
      for (; v + kVectors * kLanes <= H * V; v += kVectors * kLanes) weighted_sum<kVectors>(scores, v, kLanes, heads);
    for (int h = v / V; h < H; ++h)
      for_vectors(V, [&](int j, int n) {
        if (h * V + j >= v) weighted_sum<1>(scores, h * V + j, n, heads);
      });
  }

 private:
  static constexpr int kVectors = kAccumulators / Q;

  const T* kv(int i) const { return static_cast<const T*>(kv_[i]); }

  // Position by position, as they stand in memory, four at once.
  void dot_products(const float* queries, int query_stride, float* scores) const {
    const float scale = 1.0f / std::sqrt(static_cast<float>(K));
    for (int i = 0; i < positions_; i += 4)
      for (int h = 0; h < H; ++h) {
        FloatVec products[Q][4];
        for (auto& of_query : products)
          for (auto& sum : of_query) sum = set1(0.0f);
        for_vectors(K, [&](int k, int n) {
          for (int p = 0; p < 4; ++p) {
            const FloatVec keys = load_n(kv(i + p) + h * K + k, n);
            for (int q = 0; q < Q; ++q)
              products[q][p] = fma(load_n(queries + q * query_stride + h * K + k, n), keys, products[q][p]);
          }
        });
        for (int q = 0; q < Q; ++q) reduce_add4(products[q], scale, scores + (q * H + h) * row_ + i);
      }
  }

  // N vectors of n elements, from element v of the heads' values on.
  template <int N>
  void weighted_sum(const float* scores, int v, int n, float* heads) const {
    FloatVec sums[Q][N];
    const float* weights[N];  // of the first query
    for (auto& of_query : sums)
      for (auto& sum : of_query) sum = set1(0.0f);
    for (int j = 0; j < N; ++j) weights[j] = scores + (v + j * kLanes) / V * row_;
    for (int i = 0; i < positions_; ++i) {
      const T* values = kv(i) + H * K + v;
      for (int j = 0; j < N; ++j) {
        const FloatVec value = load_n(values + j * kLanes, n);
        for (int q = 0; q < Q; ++q) sums[q][j] = fma(set1(weights[j][q * H * row_ + i]), value, sums[q][j]);
      }
    }
    for (int q = 0; q < Q; ++q)
      for (int j = 0; j < N; ++j) store_n(heads + q * H * V + v + j * kLanes, sums[q][j], n);
  }

  const int H, K, V;
  const void* const* kv_;
  const int positions_;
  const int row_;  // floats of a row of scores
};

}  // namespace nmtkit
