// The k highest of a row of scores.
#pragma once

#include "vectors.h"

namespace nmtkit {

// The k highest of score(x[i]), i < n, and their indices (k,), in descending order; of equal scores the first. NaN
// counts as -∞. k <= n. `score` takes a float or a FloatVec.
template <class Score>
inline void top_k(const float* x, int n, int k, Score score, float* values, int64_t* indices) {
  if (k < 1) return;
  const auto insert = [&](int index, int place) {  // at `place`, or before it while what stands there is lower
    const float found = score(x[index]), value = std::isnan(found) ? -kInfinity : found;
    for (; place > 0 && value > values[place - 1]; --place) {
      values[place] = values[place - 1];
      indices[place] = indices[place - 1];
    }
    values[place] = value;
    indices[place] = index;
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
