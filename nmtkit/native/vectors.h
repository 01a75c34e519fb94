// Vectors of numbers, as wide as the CPU has them, and the few functions of them that a Transformer needs.
#pragma once

#include <cstdint>

namespace nmtkit {

struct Bf16 {
  uint16_t bits;
};

}  // namespace nmtkit

#ifdef NMTKIT_AVX512
#include "avx512.h"
#else
#include "avx2.h"
#endif

#include <algorithm>
#include <cmath>
#include <limits>

namespace nmtkit {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Call each(i, n) for the vectors of `count` numbers: n numbers from the i-th on. n is known to be kLanes to the
// compiler but for a last one of fewer, so that `load(x, n)` asks for no mask.
template <class Each>
inline void for_vectors(int count, Each each) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) each(i, kLanes);
  if (i < count) each(i, count - i);
}

template <class T>
inline Floats load_some(const T* from, int n) { return n == kLanes ? load(from) : load(from, n); }
inline void store_some(float* to, Floats x, int n) { n == kLanes ? store(to, x) : store(to, x, n); }

// The nearest numbers in 16 bits, of two as near the even one.
inline void store_some(Bf16* to, Floats x, int n) {
  if (any_nan(x)) x = every(std::numeric_limits<float>::quiet_NaN());  // rounding up would make a number of some
  const Integers odd = both(shifted_right<16>(bits(x)), every(1));
  store_words(to, shifted_right<16>(plus(plus(bits(x), every(0x7fff)), odd)), n);
}

template <class T>
inline void copy(const float* from, T* to, int count) {
  for_vectors(count, [=](int i, int n) { store_some(to + i, load_some(from + i, n), n); });
}

// e^x for x <= 0: 2^n · e^r with r within ln 2 / 2 of 0, where e^r is its Taylor series; 0 below -87, NaN for NaN.
inline Floats exp(Floats x) {
  const Floats n = whole(x * every(1.44269504088896341f));
  Floats r = fma(n, every(-0.693359375f), x);  // ln 2 in two parts, the first of them exact
  r = fma(n, every(2.12194440e-4f), r);
  Floats y = every(1.0f / 5040);
  for (const float inverse : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) y = fma(y, r, every(inverse));
  return unless_below(y * power_of_two(n), x, -87.0f);
}

// y += a · x
inline void add_scaled(float a, const float* x, float* y, int count) {
  for_vectors(count, [=](int i, int n) {
    store_some(y + i, fma(every(a), load_some(x + i, n), load_some(y + i, n)), n);
  });
}

inline void add(const float* x, float* y, int count) {
  for_vectors(count, [=](int i, int n) { store_some(y + i, load_some(x + i, n) + load_some(y + i, n), n); });
}

// The largest of `count` numbers.
inline float greatest(const float* x, int count) {
  Floats peaks = every(-kInfinity);
  for_vectors(count, [&](int i, int n) {
    peaks = max(peaks, n == kLanes ? load(x + i) : with_rest(load(x + i, n), n, peaks));
  });
  return greatest(peaks);
}

// x to weights that add up to 1.
inline void softmax(float* x, int count) {
  const Floats peak = every(greatest(x, count));
  Floats total = every(0.0f);
  for_vectors(count, [&](int i, int n) {
    const Floats y = exp(load_some(x + i, n) - peak);
    total = total + (n == kLanes ? y : with_rest(y, n, every(0.0f)));
    store_some(x + i, y, n);
  });
  const Floats factor = every(1.0f / sum(total));
  for_vectors(count, [=](int i, int n) { store_some(x + i, load_some(x + i, n) * factor, n); });
}

// x = gain · (x - mean) / √(variance + epsilon) + bias
inline void normalize(float* x, const float* gain, const float* bias, float epsilon, int count) {
  Floats total = every(0.0f);
  for_vectors(count, [&](int i, int n) { total = total + load_some(x + i, n); });
  const Floats mean = every(sum(total) / static_cast<float>(count));
  Floats squares = every(0.0f);
  for_vectors(count, [&](int i, int n) {
    const Floats distance = load_some(x + i, n) - mean;
    const Floats counted = n == kLanes ? distance : with_rest(distance, n, every(0.0f));
    squares = fma(counted, counted, squares);
  });
  const Floats factor = every(1.0f / std::sqrt(sum(squares) / static_cast<float>(count) + epsilon));
  for_vectors(count, [=](int i, int n) {
    const Floats y = (load_some(x + i, n) - mean) * factor;
    store_some(x + i, fma(y, load_some(gain + i, n), load_some(bias + i, n)), n);
  });
}

}  // namespace nmtkit
