// What becomes of a step's logits: log-probabilities, and the best of them.
#pragma once

#include "vectors.h"

namespace nmtkit {

// log Σ e^x in two parts, and x less it.
struct LogTotal {
  float peak, rest;

  float operator()(float x) const { return x - peak - rest; }
  Floats operator()(Floats x) const { return x - every(peak) - every(rest); }
};

inline LogTotal log_total(const float* x, int count) {
  const float peak = greatest(x, count);
  Floats total = every(0.0f);
  for_vectors(count, [&](int i, int n) {
    const Floats y = exp(load_some(x + i, n) - every(peak));
    total = total + (n == kLanes ? y : with_rest(y, n, every(0.0f)));
  });
  return {peak, std::log(sum(total))};
}

// x = x - log Σ e^x
inline void log_softmax(float* x, int count) {
  const LogTotal less = log_total(x, count);
  for_vectors(count, [=](int i, int n) { store_some(x + i, less(load_some(x + i, n)), n); });
}

// The `count` highest of the scores of n numbers, highest first, of equal ones the first; NaN counts as -inf. `count` is at
// most n.
template <class Score>
inline void best(const float* x, int n, int count, Score score, float* values, int64_t* columns) {
  if (count < 1) return;
  const auto insert = [&](int column, int place) {  // there, or before what is lower
    const float found = score(x[column]), value = std::isnan(found) ? -kInfinity : found;
    for (; place > 0 && value > values[place - 1]; --place) {
      values[place] = values[place - 1];
      columns[place] = columns[place - 1];
    }
    values[place] = value;
    columns[place] = column;
  };
  const auto offer = [&](int column) {
    if (score(x[column]) > values[count - 1]) insert(column, count - 1);
  };
  int i = 0;
  for (; i < count; ++i) insert(i, i);
  for (; i + kLanes <= n; i += kLanes)
    for (unsigned better = greater(score(load(x + i)), every(values[count - 1])); better; better &= better - 1)
      offer(i + __builtin_ctz(better));
  for (; i < n; ++i) offer(i);
}

}  // namespace nmtkit
