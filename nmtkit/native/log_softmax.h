// From logits to log-probabilities, without the ids that are never output.
#pragma once

#include "vectors.h"

namespace nmtkit {

// NEVER_OUTPUT of nmtkit/text/vocabulary.py.
constexpr int kNeverOutput[] = {0, 2};

// Take the ids that are never output from the softmax of logits (W,).
inline void mask_never_output(float* logits, int width) {
  for (const int id : kNeverOutput)
    if (id < width) logits[id] = -kInfinity;
}

// log Σ e^x as a sum of two parts. A call returns x less it: the log-probability of a logit.
struct LogSumExp {
  float peak, rest;

  float operator()(float x) const { return x - peak - rest; }
  FloatVec operator()(FloatVec x) const { return x - set1(peak) - set1(rest); }
};

inline LogSumExp log_sum_exp(const float* x, int count) {
  const float peak = reduce_max(x, count);
  FloatVec total = set1(0.0f);
  for_vectors(count, [&](int i, int n) {
    const FloatVec y = exp(load_n(x + i, n) - set1(peak));
    total = total + (n == kLanes ? y : blend(y, n, set1(0.0f)));
  });
  return {peak, std::log(reduce_add(total))};
}

// In place.
inline void log_softmax(float* x, int count) {
  const LogSumExp normalize = log_sum_exp(x, count);
  for_vectors(count, [=](int i, int n) { store_n(x + i, normalize(load_n(x + i, n)), n); });
}

}  // namespace nmtkit
