// Eight numbers at a time (AVX2), and the few functions of them that a Transformer needs.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace nmtkit {

constexpr int kLanes = 8;  // numbers in a vector; every width but that of the vocabulary is a multiple

inline float sum(__m256 x) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

inline float greatest(__m256 x) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

inline __m256 magnitude(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }

// e^x for x <= 0: 2^n · e^r with r within ln 2 / 2 of 0, where e^r is its Taylor series; 0 below -87, NaN for NaN.
inline __m256 exp(__m256 x) {
  const __m256 low = _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_LT_OQ);
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504088896341f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);  // ln 2 in two parts, the first of them exact
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 y = _mm256_set1_ps(1.0f / 5040);
  for (const float inverse : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(inverse));
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_andnot_ps(low, _mm256_mul_ps(y, _mm256_castsi256_ps(power)));
}

// The sums of four vectors.
inline __m128 sums(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
}

// y += a · x
inline void add_scaled(float a, const float* x, float* y, int n) {
  const __m256 factor = _mm256_set1_ps(a);
  for (int i = 0; i < n; i += kLanes)
    _mm256_storeu_ps(y + i, _mm256_fmadd_ps(factor, _mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
}

inline void add(const float* x, float* y, int n) {
  for (int i = 0; i < n; i += kLanes)
    _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
}

// x to weights that add up to 1; n is any number, and x has room up to a multiple of kLanes.
inline void softmax(float* x, int n) {
  for (int i = n; i % kLanes; ++i) x[i] = -std::numeric_limits<float>::infinity();
  __m256 peaks = _mm256_loadu_ps(x);
  for (int i = kLanes; i < n; i += kLanes) peaks = _mm256_max_ps(peaks, _mm256_loadu_ps(x + i));
  const __m256 peak = _mm256_set1_ps(greatest(peaks));
  __m256 total = _mm256_setzero_ps();
  for (int i = 0; i < n; i += kLanes) {
    const __m256 y = exp(_mm256_sub_ps(_mm256_loadu_ps(x + i), peak));
    total = _mm256_add_ps(total, y);
    _mm256_storeu_ps(x + i, y);
  }
  const __m256 factor = _mm256_set1_ps(1.0f / sum(total));
  for (int i = 0; i < n; i += kLanes) _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), factor));
}

// x = gain · (x - mean) / √(variance + epsilon) + bias
inline void normalize(float* x, const float* gain, const float* bias, float epsilon, int n) {
  __m256 total = _mm256_setzero_ps();
  for (int i = 0; i < n; i += kLanes) total = _mm256_add_ps(total, _mm256_loadu_ps(x + i));
  const __m256 mean = _mm256_set1_ps(sum(total) / static_cast<float>(n));
  __m256 squares = _mm256_setzero_ps();
  for (int i = 0; i < n; i += kLanes) {
    const __m256 distance = _mm256_sub_ps(_mm256_loadu_ps(x + i), mean);
    squares = _mm256_fmadd_ps(distance, distance, squares);
  }
  const __m256 factor = _mm256_set1_ps(1.0f / std::sqrt(sum(squares) / static_cast<float>(n) + epsilon));
  for (int i = 0; i < n; i += kLanes) {
    const __m256 y = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x + i), mean), factor);
    _mm256_storeu_ps(x + i, _mm256_fmadd_ps(y, _mm256_loadu_ps(gain + i), _mm256_loadu_ps(bias + i)));
  }
}

}  // namespace nmtkit
