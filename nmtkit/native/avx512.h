// Vector primitives for AVX-512, with VNNI if the compiler may use it: sixteen lanes. scalar.h is the reference.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "bfloat16.h"

namespace nmtkit {

using FloatVec = __m512;
using IntVec = __m512i;

constexpr int kLanes = 16;
constexpr int kTileRows = 12;      // rows of an fp32 tile, whose sums (two vectors a row) fit into the 32 registers
constexpr int kAccumulators = 16;  // vectors that attention sums side by side, of the 32 registers
constexpr int kQueryTile = 4;      // queries that attention takes at once
#ifdef __AVX512VNNI__
constexpr int kInt8TileRows = 12;   // rows of an int8 tile
constexpr int kQuantMax = 127;      // inputs in int8 are from -kQuantMax to kQuantMax
constexpr int kPairSumLimit = 508;  // of |w| over four weights of one sign in `dot_int8`: no limit
constexpr const char* kIsaName = "AVX-512 with VNNI";
#else
constexpr int kInt8TileRows = 8;  // its products need registers beside the sums
constexpr int kQuantMax = 63;
constexpr int kPairSumLimit = 258;  // 127 times that fits int16
constexpr const char* kIsaName = "AVX-512";
#endif

inline bool cpu_supported() {
#ifdef __AVX512VNNI__
  if (!__builtin_cpu_supports("avx512vnni")) return false;
#endif
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

inline __mmask16 lane_mask(int n) { return static_cast<__mmask16>((1u << n) - 1); }

inline FloatVec set1(float x) { return _mm512_set1_ps(x); }
inline IntVec set1(int32_t x) { return _mm512_set1_epi32(x); }

// Load n elements, all lanes without n; the other lanes are 0.
inline FloatVec load(const float* from) { return _mm512_loadu_ps(from); }
inline FloatVec load(const float* from, int n) { return _mm512_maskz_loadu_ps(lane_mask(n), from); }
inline FloatVec load(const Bf16* from) {
  const IntVec halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(halves, 16));
}
inline FloatVec load(const Bf16* from, int n) {
  const IntVec halves = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lane_mask(n), from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(halves, 16));
}
inline IntVec load(const int32_t* from) { return _mm512_loadu_si512(from); }
inline IntVec load(const int16_t* from, int n) {
  return _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(lane_mask(n), from));
}
inline IntVec load(const int8_t* from) { return _mm512_loadu_si512(from); }  // four in each lane

inline void store(float* to, FloatVec x) { _mm512_storeu_ps(to, x); }
inline void store(float* to, FloatVec x, int n) { _mm512_mask_storeu_ps(to, lane_mask(n), x); }
inline void store_uint16(Bf16* to, IntVec x, int n) {
  if (n == kLanes) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(x));
  _mm512_mask_cvtepi32_storeu_epi16(to, lane_mask(n), x);
}
inline void store_uint8(uint8_t* to, IntVec x, int n) { _mm512_mask_cvtepi32_storeu_epi8(to, lane_mask(n), x); }

inline FloatVec fma(FloatVec a, FloatVec b, FloatVec c) { return _mm512_fmadd_ps(a, b, c); }
inline FloatVec max(FloatVec a, FloatVec b) { return _mm512_max_ps(a, b); }  // b if either is NaN
inline FloatVec abs(FloatVec x) { return _mm512_abs_ps(x); }
inline FloatVec round(FloatVec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

inline IntVec to_int(FloatVec x) { return _mm512_cvtps_epi32(x); }  // to the nearest; unspecified if it does not fit
inline FloatVec to_float(IntVec x) { return _mm512_cvtepi32_ps(x); }
inline IntVec bit_cast(FloatVec x) { return _mm512_castps_si512(x); }
inline IntVec add(IntVec a, IntVec b) { return _mm512_add_epi32(a, b); }
inline IntVec bit_and(IntVec a, IntVec b) { return _mm512_and_si512(a, b); }
template <int N>
inline IntVec shift_right(IntVec x) { return _mm512_srli_epi32(x, N); }  // fills with 0
// 2^n for whole n from -126 to 127.
inline FloatVec pow2(FloatVec n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(add(to_int(n), set1(127)), 23));
}

// The first n lanes of x, then `rest`.
inline FloatVec blend(FloatVec x, int n, FloatVec rest) { return _mm512_mask_blend_ps(lane_mask(n), rest, x); }
// x, but 0 where y < limit.
inline FloatVec zero_below(FloatVec x, FloatVec y, float limit) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, set1(limit), _CMP_NLT_UQ), x);
}
// Bit i is set where x[i] > y[i].
inline unsigned greater_mask(FloatVec x, FloatVec y) { return _mm512_cmp_ps_mask(x, y, _CMP_GT_OQ); }
inline bool any_nan(FloatVec x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }

inline float reduce_add(FloatVec x) { return _mm512_reduce_add_ps(x); }
inline float reduce_max(FloatVec x) { return _mm512_reduce_max_ps(x); }
// to[i] = scale · the sum of x[i].
inline void reduce_add4(const FloatVec (&x)[4], float scale, float* to) {
  const auto half = [](FloatVec v) { return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)); };
  const __m256 halves =
      _mm256_hadd_ps(_mm256_hadd_ps(half(x[0]), half(x[1])), _mm256_hadd_ps(half(x[2]), half(x[3])));
  const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
  _mm_storeu_ps(to, _mm_mul_ps(sums, _mm_set1_ps(scale)));
}

// The int8 product: in each lane, total + Σ x0·w0 + Σ x1·w1 over four unsigned bytes of x and four signed bytes of w.
inline IntVec dot_int8(IntVec total, IntVec x0, IntVec w0, IntVec x1, IntVec w1) {
#ifdef __AVX512VNNI__
  // In assembler because GCC 12 spills the totals to memory when it compiles _mm512_dpbusd_epi32.
  asm("vpdpbusd %2, %1, %0\n\tvpdpbusd %4, %3, %0" : "+&v"(total) : "v"(x0), "v"(w0), "v"(x1), "v"(w1));
  return total;
#else
  // Pairs of products are added in int16, which kQuantMax and kPairSumLimit keep from saturating.
  const IntVec pairs = _mm512_add_epi16(_mm512_maddubs_epi16(x0, w0), _mm512_maddubs_epi16(x1, w1));
  return add(total, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#endif
}

}  // namespace nmtkit
