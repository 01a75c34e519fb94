// Sixteen numbers at a time: AVX-512 with VNNI.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace nmtkit {

using Floats = __m512;
using Integers = __m512i;

constexpr int kLanes = 16;
constexpr int kTileRows = 12;       // rows whose sums in a product, two vectors each, stay in the 32 registers
constexpr int kByteTileRows = 12;   // the same of integers
constexpr int kSums = 16;  // vectors that are summed side by side in attention, of the 32 registers
constexpr int kQueries = 4;  // that attention takes together, where there are as many
constexpr int kLevels = 127;        // of an input in 8 bits, to each side of 0
constexpr int kFourLevels = 508;    // of four weights in 8 bits together: any
constexpr const char* kNeeded = "AVX-512 with VNNI";

inline bool has_instructions() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

inline __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }

inline Floats every(float x) { return _mm512_set1_ps(x); }
inline Integers every(int32_t x) { return _mm512_set1_epi32(x); }

inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
inline Floats load(const float* from, int n) { return _mm512_maskz_loadu_ps(first(n), from); }
inline Integers load(const int32_t* from) { return _mm512_loadu_si512(from); }
inline Integers load(const int8_t* from) { return _mm512_loadu_si512(from); }

// The 16 higher bits of each float: bfloat16.
inline Floats load(const Bf16* from) {
  const Integers bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
inline Floats load(const Bf16* from, int n) {
  const Integers bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(n), from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

inline void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
inline void store(float* to, Floats x, int n) { _mm512_mask_storeu_ps(to, first(n), x); }

inline Integers plus(Integers a, Integers b) { return _mm512_add_epi32(a, b); }
inline Integers bits(Floats x) { return _mm512_castps_si512(x); }
template <int N>
Integers shifted_right(Integers x) { return _mm512_srli_epi32(x, N); }
inline Integers both(Integers a, Integers b) { return _mm512_and_si512(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }  // b where one of them is NaN
inline Floats magnitude(Floats x) { return _mm512_abs_ps(x); }
inline Floats whole(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Integers integers(Floats x) { return _mm512_cvtps_epi32(x); }  // the nearest
inline Floats floats(Integers x) { return _mm512_cvtepi32_ps(x); }
inline Floats power_of_two(Floats n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(plus(integers(n), every(127)), 23));
}

// The first n numbers of x, then `rest`.
inline Floats with_rest(Floats x, int n, Floats rest) { return _mm512_mask_blend_ps(first(n), rest, x); }
// x, but 0 where y < limit.
inline Floats unless_below(Floats x, Floats y, float limit) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, every(limit), _CMP_NLT_UQ), x);
}
// Bit i is set where x[i] > y[i].
inline unsigned greater(Floats x, Floats y) { return _mm512_cmp_ps_mask(x, y, _CMP_GT_OQ); }
inline bool any_nan(Floats x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }

inline float sum(Floats x) { return _mm512_reduce_add_ps(x); }
inline float greatest(Floats x) { return _mm512_reduce_max_ps(x); }

// The sums of four vectors.
inline __m128 sums(Floats a, Floats b, Floats c, Floats d) {
  const auto half = [](Floats x) { return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)); };
  const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(half(a), half(b)), _mm256_hadd_ps(half(c), half(d)));
  return _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
}

// Numbers from 0 to 65535.
inline void store_words(Bf16* to, Integers x, int n) { _mm512_mask_cvtepi32_storeu_epi16(to, first(n), x); }
// Numbers from 0 to 255.
inline void store_bytes(uint8_t* to, Integers x, int n) { _mm512_mask_cvtepi32_storeu_epi8(to, first(n), x); }

// totals + the products of four unsigned bytes with four signed ones in each lane, and of four more.
// By assembler, since GCC 12 keeps totals in memory when it is asked for the same by _mm512_dpbusd_epi32.
inline Integers add_products(Integers totals, Integers x0, Integers w0, Integers x1, Integers w1) {
  asm("vpdpbusd %2, %1, %0\n\tvpdpbusd %4, %3, %0" : "+&v"(totals) : "v"(x0), "v"(w0), "v"(x1), "v"(w1));
  return totals;
}

}  // namespace nmtkit
