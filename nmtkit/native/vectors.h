// The elementwise and rowwise functions of a Transformer, in terms of the vector primitives of one build.
#pragma once

#if defined(NMTKIT_AVX512)
#include "avx512.h"
#elif defined(NMTKIT_AVX2)
#include "avx2.h"
#elif defined(NMTKIT_NEON)
#include "neon.h"
#else
#include "scalar.h"
#endif

#include <cmath>
#include <limits>

namespace nmtkit {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Call body(i, n) for each vector of `count` elements: n elements from index i. The compiler knows that n is kLanes
// but for the last, shorter vector, so that load_n and store_n need no mask.
template <class Body>
inline void for_vectors(int count, Body body) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, kLanes);
  if (i < count) body(i, count - i);
}

template <class T>
inline FloatVec load_n(const T* from, int n) { return n == kLanes ? load(from) : load(from, n); }
inline void store_n(float* to, FloatVec x, int n) { n == kLanes ? store(to, x) : store(to, x, n); }

// x with the same bits in every NaN. Rare, so lane by lane.
inline FloatVec canonical_nan(FloatVec x) {
  float lanes[kLanes];
  store(lanes, x);
  for (float& lane : lanes)
    if (std::isnan(lane)) lane = std::numeric_limits<float>::quiet_NaN();
  return load(lanes);
}

// Rounds to the nearest bfloat16, ties to even.
inline void store_n(Bf16* to, FloatVec x, int n) {
  if (any_nan(x)) x = canonical_nan(x);  // rounding up turns other NaNs into numbers
  const IntVec odd = bit_and(shift_right<16>(bit_cast(x)), set1(1));
  store_uint16(to, shift_right<16>(add(add(bit_cast(x), set1(0x7fff)), odd)), n);
}

// Copy elements in fp32 or bfloat16, as either.
template <class From, class To>
inline void convert(const From* from, To* to, int count) {
  for_vectors(count, [=](int i, int n) { store_n(to + i, load_n(from + i, n), n); });
}

// e^x for x <= 0: 2^n · e^r with |r| <= ln 2 / 2, where e^r is its Taylor series; 0 below -87, NaN for NaN.
inline FloatVec exp(FloatVec x) {
  const FloatVec n = round(x * set1(1.44269504088896341f));
  FloatVec r = fma(n, set1(-0.693359375f), x);  // ln 2 in two parts, the first of them exact
  r = fma(n, set1(2.12194440e-4f), r);
  FloatVec y = set1(1.0f / 5040);
  for (const float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) y = fma(y, r, set1(c));
  return zero_below(y * pow2(n), x, -87.0f);
}

// σ(x)
inline FloatVec sigmoid(FloatVec x) {
  const FloatVec one = set1(1.0f), e = exp(set1(0.0f) - abs(x));
  return (e + zero_below(one - e, x, 0.0f)) / (one + e);  // 1 / (1 + e) for x >= 0, e / (1 + e) below
}

inline FloatVec swish(FloatVec x) { return x * sigmoid(x); }

// x · Φ(x), with Φ(x) = (1 + erf(x / √2)) / 2 within 1e-7 (Abramowitz and Stegun 7.1.26).
inline FloatVec gelu(FloatVec x) {
  const FloatVec one = set1(1.0f), t = one / fma(abs(x), set1(0.3275911f * 0.70710678f), one);
  FloatVec y = set1(1.061405429f);
  for (const float c : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f, 0.0f}) y = fma(y, t, set1(c));
  const FloatVec tail = set1(0.5f) * y * exp(set1(-0.5f) * x * x);  // Φ(-|x|)
  return x * (tail + zero_below(one - tail - tail, x, 0.0f));
}

// x = f(x), for a function of vectors.
template <class F>
inline void apply(F f, float* x, int count) {
  for_vectors(count, [=](int i, int n) { store_n(x + i, f(load_n(x + i, n)), n); });
}

// y += x
template <class T>
inline void add_in_place(const T* x, float* y, int count) {
  for_vectors(count, [=](int i, int n) { store_n(y + i, load_n(x + i, n) + load_n(y + i, n), n); });
}

// -∞ without elements.
inline float reduce_max(const float* x, int count) {
  FloatVec maxima = set1(-kInfinity);
  for_vectors(count, [&](int i, int n) {
    maxima = max(maxima, n == kLanes ? load(x + i) : blend(load(x + i, n), n, maxima));
  });
  return reduce_max(maxima);
}

// In place.
inline void softmax(float* x, int count) {
  const FloatVec peak = set1(reduce_max(x, count));
  FloatVec total = set1(0.0f);
  for_vectors(count, [&](int i, int n) {
    const FloatVec y = exp(load_n(x + i, n) - peak);
    total = total + (n == kLanes ? y : blend(y, n, set1(0.0f)));
    store_n(x + i, y, n);
  });
  const FloatVec factor = set1(1.0f / reduce_add(total));
  for_vectors(count, [=](int i, int n) { store_n(x + i, load_n(x + i, n) * factor, n); });
}

// A row's mean and 1 / √(variance + ε).
struct Moments {
  float mean, rstd;

  FloatVec normalize(FloatVec x) const { return (x - set1(mean)) * set1(rstd); }
};

// y = gain · (x - mean) / √(variance + ε) + bias; y may be x.
template <class T>
Moments normalize(const T* x, const float* gain, const float* bias, float epsilon, int count, T* y) {
  FloatVec total = set1(0.0f), squares = set1(0.0f);
  for_vectors(count, [&](int i, int n) { total = total + load_n(x + i, n); });
  const float mean = reduce_add(total) / static_cast<float>(count);
  for_vectors(count, [&](int i, int n) {
    const FloatVec deviation = load_n(x + i, n) - set1(mean);
    const FloatVec counted = n == kLanes ? deviation : blend(deviation, n, set1(0.0f));
    squares = fma(counted, counted, squares);
  });
  const Moments row{mean, 1.0f / std::sqrt(reduce_add(squares) / static_cast<float>(count) + epsilon)};
  for_vectors(count, [=](int i, int n) {
    store_n(y + i, fma(row.normalize(load_n(x + i, n)), load_n(gain + i, n), load_n(bias + i, n)), n);
  });
  return row;
}

// y = gain · x / √(mean of x² + ε); y may be x.
inline void rms_normalize(const float* x, const float* gain, float epsilon, int count, float* y) {
  FloatVec squares = set1(0.0f);
  for_vectors(count, [&](int i, int n) { squares = fma(load_n(x + i, n), load_n(x + i, n), squares); });
  const FloatVec factor = set1(1.0f / std::sqrt(reduce_add(squares) / static_cast<float>(count) + epsilon));
  for_vectors(count, [=](int i, int n) { store_n(y + i, load_n(x + i, n) * factor * load_n(gain + i, n), n); });
}

// Rotates each pair (x[i], x[half + i]) by the angle whose cosine is rotation[i], and whose sine is rotation[half + i].
inline void rotate(const float* rotation, int half, float* x) {
  for_vectors(half, [=](int i, int n) {
    const FloatVec cosine = load_n(rotation + i, n), sine = load_n(rotation + half + i, n);
    const FloatVec a = load_n(x + i, n), b = load_n(x + half + i, n);
    store_n(x + i, a * cosine - b * sine, n);
    store_n(x + half + i, b * cosine + a * sine, n);
  });
}

}  // namespace nmtkit
