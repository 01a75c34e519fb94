// What the search asks of a step's logits: log-probabilities, and the best of them.
#pragma once

#include "vectors.h"

namespace nmtkit {

// x = x - log Σ e^x, over n numbers.
inline void log_softmax(float* x, int n) {
  const int whole = n / kLanes * kLanes;
  float rest[kLanes];
  std::fill(rest, rest + kLanes, -std::numeric_limits<float>::infinity());
  std::copy(x + whole, x + n, rest);
  __m256 peaks = _mm256_loadu_ps(rest);
  for (int i = 0; i < whole; i += kLanes) peaks = _mm256_max_ps(peaks, _mm256_loadu_ps(x + i));
  const __m256 peak = _mm256_set1_ps(greatest(peaks));
  __m256 total = exp(_mm256_sub_ps(_mm256_loadu_ps(rest), peak));
  for (int i = 0; i < whole; i += kLanes) total = _mm256_add_ps(total, exp(_mm256_sub_ps(_mm256_loadu_ps(x + i), peak)));
  const float shift = greatest(peak) + std::log(sum(total));
  for (int i = 0; i < whole; i += kLanes)
    _mm256_storeu_ps(x + i, _mm256_sub_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(shift)));
  for (int i = whole; i < n; ++i) x[i] -= shift;
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
  for (; i + kLanes <= n; i += kLanes) {
    const __m256 least = _mm256_set1_ps(values[count - 1]);
    unsigned better = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(scores + i), least, _CMP_GT_OQ));
    for (; better; better &= better - 1) offer(i + __builtin_ctz(better));
  }
  for (; i < n; ++i) offer(i);
}

}  // namespace nmtkit
