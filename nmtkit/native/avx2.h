// Eight numbers at a time: AVX2 with FMA.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace nmtkit {

using Floats = __m256;
using Integers = __m256i;

constexpr int kLanes = 8;
constexpr int kTileRows = 6;      // rows whose sums in a product, two vectors each, stay in the 16 registers
constexpr int kByteTileRows = 4;  // the same of integers, which need more beside them
constexpr int kSums = 8;  // vectors that are summed side by side in attention, of the 16 registers
constexpr int kQueries = 2;  // that attention takes together, where there are as many
constexpr int kLevels = 63;       // of an input in 8 bits, to each side of 0
constexpr int kFourLevels = 258;  // of four weights in 8 bits of one sign together: 127 times that fits into 16 bits
constexpr const char* kNeeded = "AVX2 with FMA";

inline bool has_instructions() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

// All bits in the first n lanes.
inline __m256i first(int n) {
  alignas(64) static constexpr int32_t kBits[2 * kLanes] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kBits + kLanes - n));
}

inline Floats every(float x) { return _mm256_set1_ps(x); }
inline Integers every(int32_t x) { return _mm256_set1_epi32(x); }

inline Floats load(const float* from) { return _mm256_loadu_ps(from); }
inline Floats load(const float* from, int n) { return _mm256_maskload_ps(from, first(n)); }
inline Integers load(const int32_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline Integers load(const int8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

// The 16 higher bits of each float: bfloat16.
inline Floats load(const Bf16* from) {
  const Integers bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}
inline Floats load(const Bf16* from, int n) {
  Bf16 some[kLanes] = {};
  std::memcpy(some, from, n * sizeof(Bf16));
  return load(some);
}

inline void store(float* to, Floats x) { _mm256_storeu_ps(to, x); }
inline void store(float* to, Floats x, int n) { _mm256_maskstore_ps(to, first(n), x); }

inline Integers plus(Integers a, Integers b) { return _mm256_add_epi32(a, b); }
inline Integers bits(Floats x) { return _mm256_castps_si256(x); }
template <int N>
Integers shifted_right(Integers x) { return _mm256_srli_epi32(x, N); }
inline Integers both(Integers a, Integers b) { return _mm256_and_si256(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }  // b where one of them is NaN
inline Floats magnitude(Floats x) { return _mm256_andnot_ps(every(-0.0f), x); }
inline Floats whole(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Integers integers(Floats x) { return _mm256_cvtps_epi32(x); }  // the nearest
inline Floats floats(Integers x) { return _mm256_cvtepi32_ps(x); }
inline Floats power_of_two(Floats n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(plus(integers(n), every(127)), 23));
}

// The first n numbers of x, then `rest`.
inline Floats with_rest(Floats x, int n, Floats rest) {
  return _mm256_blendv_ps(rest, x, _mm256_castsi256_ps(first(n)));
}
// x, but 0 where y < limit.
inline Floats unless_below(Floats x, Floats y, float limit) {
  return _mm256_andnot_ps(_mm256_cmp_ps(y, every(limit), _CMP_LT_OQ), x);
}
// Bit i is set where x[i] > y[i].
inline unsigned greater(Floats x, Floats y) { return _mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_GT_OQ)); }
inline bool any_nan(Floats x) { return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0; }

inline float sum(Floats x) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

inline float greatest(Floats x) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// The sums of four vectors.
inline __m128 sums(Floats a, Floats b, Floats c, Floats d) {
  const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
}

// Numbers from 0 to 65535.
inline void store_words(Bf16* to, Integers x, int n) {
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  std::memcpy(to, &words, n * sizeof(Bf16));
}
// Numbers from 0 to 255.
inline void store_bytes(uint8_t* to, Integers x, int n) {
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  const __m128i bytes = _mm_packus_epi16(words, words);
  std::memcpy(to, &bytes, n);
}

// totals + the products of four unsigned bytes with four signed ones in each lane, and of four more, which are added up
// in 16 bits (kLevels and kFourLevels see to it that they can be).
inline Integers add_products(Integers totals, Integers x0, Integers w0, Integers x1, Integers w1) {
  const Integers products = _mm256_add_epi16(_mm256_maddubs_epi16(x0, w0), _mm256_maddubs_epi16(x1, w1));
  return plus(totals, _mm256_madd_epi16(products, _mm256_set1_epi16(1)));
}

}  // namespace nmtkit
