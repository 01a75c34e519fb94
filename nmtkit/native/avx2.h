// Vector primitives for AVX2 with FMA: eight lanes. scalar.h is the reference.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "bfloat16.h"

namespace nmtkit {

using FloatVec = __m256;
using IntVec = __m256i;

constexpr int kLanes = 8;
constexpr int kTileRows = 6;      // rows of an fp32 tile, whose sums (two vectors a row) fit into the 16 registers
constexpr int kInt8TileRows = 4;  // rows of an int8 tile, which needs more registers beside its sums
constexpr int kAccumulators = 8;  // vectors that attention sums side by side, of the 16 registers
constexpr int kQueryTile = 2;     // queries that attention takes at once
constexpr int kQuantMax = 63;       // inputs in int8 are from -kQuantMax to kQuantMax
constexpr int kPairSumLimit = 258;  // of |w| over four weights of one sign in `dot_int8`: 127 times that fits int16
constexpr const char* kIsaName = "AVX2 with FMA";

inline bool cpu_supported() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

// All bits in the first n lanes.
inline __m256i lane_mask(int n) {
  alignas(64) static constexpr int32_t kBits[2 * kLanes] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kBits + kLanes - n));
}

inline FloatVec set1(float x) { return _mm256_set1_ps(x); }
inline IntVec set1(int32_t x) { return _mm256_set1_epi32(x); }

// Load n elements, all lanes without n; the other lanes are 0.
inline FloatVec load(const float* from) { return _mm256_loadu_ps(from); }
inline FloatVec load(const float* from, int n) { return _mm256_maskload_ps(from, lane_mask(n)); }
inline FloatVec load(const Bf16* from) {
  const IntVec halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(halves, 16));
}
inline FloatVec load(const Bf16* from, int n) {
  Bf16 padded[kLanes] = {};
  std::memcpy(padded, from, n * sizeof(Bf16));
  return load(padded);
}
inline IntVec load(const int32_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline IntVec load(const int16_t* from, int n) {
  if (n == kLanes) return _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  int16_t padded[kLanes] = {};
  std::memcpy(padded, from, n * sizeof(int16_t));
  return load(padded, kLanes);
}
inline IntVec load(const int8_t* from) {  // four in each lane
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

inline void store(float* to, FloatVec x) { _mm256_storeu_ps(to, x); }
inline void store(float* to, FloatVec x, int n) { _mm256_maskstore_ps(to, lane_mask(n), x); }
inline void store_uint16(Bf16* to, IntVec x, int n) {
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  std::memcpy(to, &words, n * sizeof(Bf16));
}
inline void store_uint8(uint8_t* to, IntVec x, int n) {
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  const __m128i bytes = _mm_packus_epi16(words, words);
  std::memcpy(to, &bytes, n);
}

inline FloatVec fma(FloatVec a, FloatVec b, FloatVec c) { return _mm256_fmadd_ps(a, b, c); }
inline FloatVec max(FloatVec a, FloatVec b) { return _mm256_max_ps(a, b); }  // b if either is NaN
inline FloatVec abs(FloatVec x) { return _mm256_andnot_ps(set1(-0.0f), x); }
inline FloatVec round(FloatVec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

inline IntVec to_int(FloatVec x) { return _mm256_cvtps_epi32(x); }  // to the nearest; unspecified if it does not fit
inline FloatVec to_float(IntVec x) { return _mm256_cvtepi32_ps(x); }
inline IntVec bit_cast(FloatVec x) { return _mm256_castps_si256(x); }
inline IntVec add(IntVec a, IntVec b) { return _mm256_add_epi32(a, b); }
inline IntVec bit_and(IntVec a, IntVec b) { return _mm256_and_si256(a, b); }
template <int N>
inline IntVec shift_right(IntVec x) { return _mm256_srli_epi32(x, N); }  // fills with 0
// 2^n for whole n from -126 to 127.
inline FloatVec pow2(FloatVec n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(add(to_int(n), set1(127)), 23));
}

// The first n lanes of x, then `rest`.
inline FloatVec blend(FloatVec x, int n, FloatVec rest) {
  return _mm256_blendv_ps(rest, x, _mm256_castsi256_ps(lane_mask(n)));
}
// x, but 0 where y < limit.
inline FloatVec zero_below(FloatVec x, FloatVec y, float limit) {
  return _mm256_andnot_ps(_mm256_cmp_ps(y, set1(limit), _CMP_LT_OQ), x);
}
// Bit i is set where x[i] > y[i].
inline unsigned greater_mask(FloatVec x, FloatVec y) { return _mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_GT_OQ)); }
inline bool any_nan(FloatVec x) { return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0; }

inline float reduce_add(FloatVec x) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float reduce_max(FloatVec x) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
// to[i] = scale · the sum of x[i].
inline void reduce_add4(const FloatVec (&x)[4], float scale, float* to) {
  const __m256 halves = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
  const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
  _mm_storeu_ps(to, _mm_mul_ps(sums, _mm_set1_ps(scale)));
}

// The int8 product: in each lane, total + Σ x0·w0 + Σ x1·w1 over four unsigned bytes of x and four signed bytes of w.
// Pairs of products are added in int16, which kQuantMax and kPairSumLimit keep from saturating.
inline IntVec dot_int8(IntVec total, IntVec x0, IntVec w0, IntVec x1, IntVec w1) {
  const IntVec pairs = _mm256_add_epi16(_mm256_maddubs_epi16(x0, w0), _mm256_maddubs_epi16(x1, w1));
  return add(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

}  // namespace nmtkit
