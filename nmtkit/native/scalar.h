// Vector primitives in portable C++17, for every processor: the readable reference for avx2.h, avx512.h and
// neon.h, which define the same names.
//
// Vectors have eight lanes and reductions add in the order of avx2.h, so both builds compute the same bits.
#pragma once

#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "bfloat16.h"

// The limits of avx2.h. A program may ask for those of avx512.h to compute what that build computes.
#ifndef NMTKIT_QUANT_MAX
#define NMTKIT_QUANT_MAX 63
#define NMTKIT_PAIR_SUM_LIMIT 258
#endif

namespace nmtkit {

constexpr int kLanes = 8;
constexpr int kTileRows = 4;      // rows of a tile of an fp32 product
constexpr int kInt8TileRows = 4;  // rows of a tile of an int8 product
constexpr int kAccumulators = 8;  // vectors that attention sums side by side
constexpr int kQueryTile = 2;     // queries that attention takes at once
constexpr int kQuantMax = NMTKIT_QUANT_MAX;           // inputs in int8 are from -kQuantMax to kQuantMax
constexpr int kPairSumLimit = NMTKIT_PAIR_SUM_LIMIT;  // of |w| over four weights of one sign in `dot_int8`
constexpr const char* kIsaName = "portable C++";

inline bool cpu_supported() { return true; }

template <class T>
struct Vec {
  T lane[kLanes];
};
using FloatVec = Vec<float>;
using IntVec = Vec<int32_t>;

// f of the vectors' lanes, lane by lane.
template <class F, class... V>
inline auto map(F f, const V&... x) {
  Vec<std::decay_t<decltype(f(x.lane[0]...))>> y;
  for (int i = 0; i < kLanes; ++i) y.lane[i] = f(x.lane[i]...);
  return y;
}

inline FloatVec set1(float x) {
  FloatVec y;
  for (float& lane : y.lane) lane = x;
  return y;
}
inline IntVec set1(int32_t x) {
  IntVec y;
  for (int32_t& lane : y.lane) lane = x;
  return y;
}

// Load n elements, all lanes without n; the other lanes are 0.
inline FloatVec load(const float* from, int n) {
  FloatVec y = set1(0.0f);
  std::memcpy(y.lane, from, n * sizeof(float));
  return y;
}
inline FloatVec load(const float* from) { return load(from, kLanes); }
inline FloatVec load(const Bf16* from, int n) {
  FloatVec y = set1(0.0f);
  for (int i = 0; i < n; ++i) {
    const uint32_t bits = static_cast<uint32_t>(from[i].bits) << 16;
    std::memcpy(&y.lane[i], &bits, sizeof bits);
  }
  return y;
}
inline FloatVec load(const Bf16* from) { return load(from, kLanes); }
inline IntVec load(const int32_t* from) {
  IntVec y;
  std::memcpy(y.lane, from, sizeof y);
  return y;
}
inline IntVec load(const int16_t* from, int n) {
  IntVec y = set1(0);
  for (int i = 0; i < n; ++i) y.lane[i] = from[i];
  return y;
}
inline IntVec load(const int8_t* from) {  // four in each lane
  IntVec y;
  std::memcpy(y.lane, from, sizeof y);
  return y;
}

inline void store(float* to, FloatVec x, int n) { std::memcpy(to, x.lane, n * sizeof(float)); }
inline void store(float* to, FloatVec x) { store(to, x, kLanes); }
inline void store_uint16(Bf16* to, IntVec x, int n) {
  for (int i = 0; i < n; ++i) to[i].bits = static_cast<uint16_t>(x.lane[i]);
}
inline void store_uint8(uint8_t* to, IntVec x, int n) {
  for (int i = 0; i < n; ++i) to[i] = static_cast<uint8_t>(x.lane[i]);
}

inline FloatVec operator+(FloatVec a, FloatVec b) { return map([](float x, float y) { return x + y; }, a, b); }
inline FloatVec operator-(FloatVec a, FloatVec b) { return map([](float x, float y) { return x - y; }, a, b); }
inline FloatVec operator*(FloatVec a, FloatVec b) { return map([](float x, float y) { return x * y; }, a, b); }
inline FloatVec operator/(FloatVec a, FloatVec b) { return map([](float x, float y) { return x / y; }, a, b); }
inline FloatVec fma(FloatVec a, FloatVec b, FloatVec c) {
  return map([](float x, float y, float z) { return std::fma(x, y, z); }, a, b, c);
}
inline FloatVec max(FloatVec a, FloatVec b) {  // b if either is NaN
  return map([](float x, float y) { return x > y ? x : y; }, a, b);
}
inline FloatVec abs(FloatVec x) { return map([](float each) { return std::fabs(each); }, x); }
inline FloatVec round(FloatVec x) { return map([](float each) { return std::nearbyint(each); }, x); }

inline IntVec to_int(FloatVec x) {  // to the nearest; unspecified if it does not fit
  const auto convert = [](float each) {
    return std::fabs(each) < 0x1p31f ? static_cast<int32_t>(std::nearbyint(each)) : INT_MIN;
  };
  return map(convert, x);
}
inline FloatVec to_float(IntVec x) { return map([](int32_t each) { return static_cast<float>(each); }, x); }
inline IntVec bit_cast(FloatVec x) {
  IntVec y;
  std::memcpy(y.lane, x.lane, sizeof y);
  return y;
}
inline IntVec add(IntVec a, IntVec b) {  // wraps around
  return map([](uint32_t x, uint32_t y) { return static_cast<int32_t>(x + y); }, a, b);
}
inline IntVec bit_and(IntVec a, IntVec b) { return map([](int32_t x, int32_t y) { return x & y; }, a, b); }
template <int N>
inline IntVec shift_right(IntVec x) {  // fills with 0
  return map([](uint32_t each) { return static_cast<int32_t>(each >> N); }, x);
}
// 2^n for whole n from -126 to 127.
inline FloatVec pow2(FloatVec n) {
  const auto power = [](int32_t exponent) {
    const uint32_t bits = (static_cast<uint32_t>(exponent) + 127) << 23;
    float y;
    std::memcpy(&y, &bits, sizeof y);
    return y;
  };
  return map(power, to_int(n));
}

// The first n lanes of x, then `rest`.
inline FloatVec blend(FloatVec x, int n, FloatVec rest) {
  std::memcpy(rest.lane, x.lane, n * sizeof(float));
  return rest;
}
// x, but 0 where y < limit.
inline FloatVec zero_below(FloatVec x, FloatVec y, float limit) {
  return map([=](float each, float other) { return other < limit ? 0.0f : each; }, x, y);
}
// Bit i is set where x[i] > y[i].
inline unsigned greater_mask(FloatVec x, FloatVec y) {
  unsigned bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= static_cast<unsigned>(x.lane[i] > y.lane[i]) << i;
  return bits;
}
inline bool any_nan(FloatVec x) {
  for (const float each : x.lane)
    if (std::isnan(each)) return true;
  return false;
}

inline float reduce_add(FloatVec x) {
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x.lane[i] += x.lane[i + half];
  return x.lane[0];
}
inline float reduce_max(FloatVec x) {
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x.lane[i] = x.lane[i] > x.lane[i + half] ? x.lane[i] : x.lane[i + half];
  return x.lane[0];
}
// to[i] = scale · the sum of x[i].
inline void reduce_add4(const FloatVec (&x)[4], float scale, float* to) {
  for (int i = 0; i < 4; ++i) {
    const float* v = x[i].lane;
    to[i] = (((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]))) * scale;
  }
}

// Σ x·w over the four unsigned bytes of x and the four signed bytes of w.
inline int32_t dot_bytes(int32_t x, int32_t w) {
  uint8_t inputs[4];
  int8_t weights[4];
  std::memcpy(inputs, &x, sizeof x);
  std::memcpy(weights, &w, sizeof w);
  int32_t total = 0;
  for (int i = 0; i < 4; ++i) total += inputs[i] * weights[i];
  return total;
}
// The int8 product: in each lane, total + Σ x0·w0 + Σ x1·w1 over four unsigned bytes of x and four signed bytes of w.
inline IntVec dot_int8(IntVec total, IntVec x0, IntVec w0, IntVec x1, IntVec w1) {
  const auto dot = [](int32_t t, int32_t a, int32_t b, int32_t c, int32_t d) {
    return t + dot_bytes(a, b) + dot_bytes(c, d);
  };
  return map(dot, total, x0, w0, x1, w1);
}

}  // namespace nmtkit
