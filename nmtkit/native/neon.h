// Vector primitives for 64-bit ARM: four lanes. scalar.h is the reference.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "bfloat16.h"

namespace nmtkit {

using FloatVec = float32x4_t;
using IntVec = int32x4_t;

constexpr int kLanes = 4;
constexpr int kTileRows = 8;      // rows of an fp32 tile, whose sums (two vectors a row) fit into the 32 registers
constexpr int kInt8TileRows = 8;  // rows of an int8 tile
constexpr int kAccumulators = 8;  // vectors that attention sums side by side, of the 32 registers
constexpr int kQueryTile = 2;     // queries that attention takes at once
constexpr int kQuantMax = 63;       // inputs in int8 are from -kQuantMax to kQuantMax
constexpr int kPairSumLimit = 258;  // of |w| over four weights of one sign in `dot_int8`: as in the other builds
constexpr const char* kIsaName = "NEON";

inline bool cpu_supported() { return true; }

// All bits in the first n lanes.
inline uint32x4_t lane_mask(int n) {
  static constexpr uint32_t kBits[2 * kLanes] = {~0u, ~0u, ~0u, ~0u};
  return vld1q_u32(kBits + kLanes - n);
}

inline FloatVec set1(float x) { return vdupq_n_f32(x); }
inline IntVec set1(int32_t x) { return vdupq_n_s32(x); }

// Load n elements, all lanes without n; the other lanes are 0.
inline FloatVec load(const float* from) { return vld1q_f32(from); }
inline FloatVec load(const float* from, int n) {
  float padded[kLanes] = {};
  std::memcpy(padded, from, n * sizeof(float));
  return load(padded);
}
inline FloatVec load(const Bf16* from) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(from)), 16));
}
inline FloatVec load(const Bf16* from, int n) {
  Bf16 padded[kLanes] = {};
  std::memcpy(padded, from, n * sizeof(Bf16));
  return load(padded);
}
inline IntVec load(const int32_t* from) { return vld1q_s32(from); }
inline IntVec load(const int16_t* from, int n) {
  int16_t padded[kLanes] = {};
  std::memcpy(padded, from, n * sizeof(int16_t));
  return vmovl_s16(vld1_s16(padded));
}
inline IntVec load(const int8_t* from) { return vreinterpretq_s32_s8(vld1q_s8(from)); }  // four in each lane

inline void store(float* to, FloatVec x) { vst1q_f32(to, x); }
inline void store(float* to, FloatVec x, int n) { std::memcpy(to, &x, n * sizeof(float)); }
inline void store_uint16(Bf16* to, IntVec x, int n) {
  const uint16x4_t words = vmovn_u32(vreinterpretq_u32_s32(x));
  std::memcpy(to, &words, n * sizeof(Bf16));
}
inline void store_uint8(uint8_t* to, IntVec x, int n) {
  const uint16x4_t words = vmovn_u32(vreinterpretq_u32_s32(x));
  const uint8x8_t bytes = vmovn_u16(vcombine_u16(words, words));
  std::memcpy(to, &bytes, n);
}

inline FloatVec fma(FloatVec a, FloatVec b, FloatVec c) { return vfmaq_f32(c, a, b); }
inline FloatVec max(FloatVec a, FloatVec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }  // b if either is NaN
inline FloatVec abs(FloatVec x) { return vabsq_f32(x); }
inline FloatVec round(FloatVec x) { return vrndnq_f32(x); }

inline IntVec to_int(FloatVec x) { return vcvtnq_s32_f32(x); }  // to the nearest; unspecified if it does not fit
inline FloatVec to_float(IntVec x) { return vcvtq_f32_s32(x); }
inline IntVec bit_cast(FloatVec x) { return vreinterpretq_s32_f32(x); }
inline IntVec add(IntVec a, IntVec b) { return vaddq_s32(a, b); }
inline IntVec bit_and(IntVec a, IntVec b) { return vandq_s32(a, b); }
template <int N>
inline IntVec shift_right(IntVec x) {  // fills with 0
  return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x), N));
}
// 2^n for whole n from -126 to 127.
inline FloatVec pow2(FloatVec n) { return vreinterpretq_f32_s32(vshlq_n_s32(add(to_int(n), set1(127)), 23)); }

// The first n lanes of x, then `rest`.
inline FloatVec blend(FloatVec x, int n, FloatVec rest) { return vbslq_f32(lane_mask(n), x, rest); }
// x, but 0 where y < limit.
inline FloatVec zero_below(FloatVec x, FloatVec y, float limit) {
  return vbslq_f32(vcltq_f32(y, set1(limit)), set1(0.0f), x);
}
// Bit i is set where x[i] > y[i].
inline unsigned greater_mask(FloatVec x, FloatVec y) {
  static constexpr uint32_t kLaneBits[kLanes] = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(vcgtq_f32(x, y), vld1q_u32(kLaneBits)));
}
inline bool any_nan(FloatVec x) { return vminvq_u32(vceqq_f32(x, x)) == 0; }

inline float reduce_add(FloatVec x) { return vaddvq_f32(x); }
inline float reduce_max(FloatVec x) { return vmaxvq_f32(x); }
// to[i] = scale · the sum of x[i].
inline void reduce_add4(const FloatVec (&x)[4], float scale, float* to) {
  store(to, vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3])) * set1(scale));
}

// The int8 product: in each lane, total + Σ x0·w0 + Σ x1·w1 over four unsigned bytes of x and four signed bytes of w.
// Bytes of x are at most 2 · kQuantMax + 1 = 127, so they are signed as well, and two products fit into int16.
inline IntVec dot_int8(IntVec total, IntVec x0, IntVec w0, IntVec x1, IntVec w1) {
  const int8x16_t a = vreinterpretq_s8_s32(x0), b = vreinterpretq_s8_s32(w0);
  const int8x16_t c = vreinterpretq_s8_s32(x1), d = vreinterpretq_s8_s32(w1);
  const int16x8_t low = vmlal_s8(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vget_low_s8(c), vget_low_s8(d));
  const int16x8_t high = vmlal_high_s8(vmull_high_s8(a, b), c, d);
  return add(total, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
}

}  // namespace nmtkit
