// The k highest of a row of scores.
#pragma once

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "vectors.h"

namespace nmtkit {

constexpr int kMostInserted = 128;  // scores kept in order; the time of that is quadratic, so more are kept in a heap

// Call keep(i, score) for each i, begin <= i < n, whose score is above `lowest`, which `keep` may raise.
template <class Score, class Keep>
inline void for_each_above(const float* x, int begin, int n, Score score, const float& lowest, Keep keep) {
  const auto offer = [&](int i) {
    if (const float found = score(x[i]); found > lowest) keep(i, found);
  };
  int i = begin;
  for (; i + kLanes <= n; i += kLanes)
    for (unsigned better = greater_mask(score(load(x + i)), set1(lowest)); better; better &= better - 1)
      offer(i + __builtin_ctz(better));
  for (; i < n; ++i) offer(i);
}

// The k highest of score(x[i]), i < n, and their indices (k,), in descending order; of equal scores the first. NaN
// counts as -∞. k <= n. `score` takes a float or a FloatVec.
template <class Score>
inline void top_k(const float* x, int n, int k, Score score, float* values, int64_t* indices) {
  if (k < 1) return;
  const auto first = [&](int i) {
    const float found = score(x[i]);
    return std::isnan(found) ? -kInfinity : found;
  };
  if (k <= kMostInserted) {
    const auto insert = [&](int index, float value, int rank) {  // at this rank, or above the lower scores before it
      for (; rank > 0 && value > values[rank - 1]; --rank) {
        values[rank] = values[rank - 1];
        indices[rank] = indices[rank - 1];
      }
      values[rank] = value;
      indices[rank] = index;
    };
    for (int i = 0; i < k; ++i) insert(i, first(i), i);
    for_each_above(x, k, n, score, values[k - 1], [&](int i, float value) { insert(i, value, k - 1); });
    return;
  }
  using Ranked = std::pair<float, int64_t>;  // a score and its index
  const auto is_better = [](const Ranked& a, const Ranked& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  std::vector<Ranked> heap(k);  // the worst is in front
  for (int i = 0; i < k; ++i) heap[i] = {first(i), i};
  std::make_heap(heap.begin(), heap.end(), is_better);
  for_each_above(x, k, n, score, heap.front().first, [&](int i, float value) {
    std::pop_heap(heap.begin(), heap.end(), is_better);
    heap.back() = {value, i};
    std::push_heap(heap.begin(), heap.end(), is_better);
  });
  std::sort_heap(heap.begin(), heap.end(), is_better);
  for (int i = 0; i < k; ++i) std::tie(values[i], indices[i]) = heap[i];
}

}  // namespace nmtkit
