// What becomes of a step's logits: log-probabilities, and the best of them.
#pragma once

#include "vectors.h"

namespace nmtkit {

// x = x - log Σ e^x
inline void log_softmax(float* x, int count) {
  const Floats peak = every(greatest(x, count));
  Floats total = every(0.0f);
  for_vectors(count, [&](int i, int n) {
    const Floats y = exp(load_some(x + i, n) - peak);
    total = total + (n == kLanes ? y : with_rest(y, n, every(0.0f)));
  });
  const Floats log_total = every(std::log(sum(total)));
  for_vectors(count, [=](int i, int n) { store_some(x + i, load_some(x + i, n) - peak - log_total, n); });
}

// The `count` highest of n scores, highest first, of equal ones the first; count is at most n.
inline void best(const float* scores, int n, int count, float* values, int64_t* columns) {
  const auto insert = [&](int column, int place) {  // there, or before what is lower
    for (; place > 0 && scores[column] > values[place - 1]; --place) {
      values[place] = values[place - 1];
      columns[place] = columns[place - 1];
    }
    values[place] = scores[column];
    columns[place] = column;
  };
  const auto offer = [&](int column) {
    if (scores[column] > values[count - 1]) insert(column, count - 1);
  };
  int i = 0;
  for (; i < count; ++i) insert(i, i);
  for (; i + kLanes <= n; i += kLanes)
    for (unsigned better = greater(load(scores + i), every(values[count - 1])); better; better &= better - 1)
      offer(i + __builtin_ctz(better));
  for (; i < n; ++i) offer(i);
}

}  // namespace nmtkit
