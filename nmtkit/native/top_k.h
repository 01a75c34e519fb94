// The k highest of a row of scores.
#pragma once

#include "vectors.h"

namespace nmtkit {

// The k highest of score(x[i]), i < n, and their indices (k,), in descending order; of equal scores the first. NaN
// counts as -∞. k <= n. `score` takes a float or a FloatVec.
template <class Score>
inline void top_k(const float* x, int n, int k, Score score, float* values, int64_t* indices) {
  if (k < 1) return;
  const auto insert = [&](int index, int rank) {  // at this rank, or at a better one if the scores there are lower
    const float found = score(x[index]), value = std::isnan(found) ? -kInfinity : found;
    for (; rank > 0 && value > values[rank - 1]; --rank) {
      values[rank] = values[rank - 1];
      indices[rank] = indices[rank - 1];
    }
    values[rank] = value;
    indices[rank] = index;
  };
  const auto offer = [&](int index) {
    if (score(x[index]) > values[k - 1]) insert(index, k - 1);
  };
  int i = 0;
  for (; i < k; ++i) insert(i, i);
  for (; i + kLanes <= n; i += kLanes)
    for (unsigned better = greater_mask(score(load(x + i)), set1(values[k - 1])); better; better &= better - 1)
      offer(i + __builtin_ctz(better));
  for (; i < n; ++i) offer(i);
}

}  // namespace nmtkit
