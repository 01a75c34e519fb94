// Prints what each vector primitive of a build computes, in a form that does not depend on the number of lanes.
// test_native_builds.py compiles it once for each build and compares the outputs.
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "../../nmtkit/native/vectors.h"

using namespace nmtkit;

constexpr int kCount = 256;  // a multiple of all kLanes

std::vector<float> uniform(float low, float high, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<float> x(kCount);
  for (float& each : x) each = low + (high - low) * static_cast<float>(generator() >> 8) / (1 << 24);
  return x;
}

void print(const char* name, const std::vector<float>& x) {
  std::printf("%s", name);
  for (const float each : x) std::isnan(each) ? std::printf(" nan") : std::printf(" %a", each);
  std::printf("\n");
}

// Print f(i) of each vector, i being the index of its first element.
template <class F>
void print_vectors(const char* name, F f) {
  std::vector<float> y(kCount);
  for (int i = 0; i < kCount; i += kLanes) store(y.data() + i, f(i));
  print(name, y);
}

void print_float_functions(const std::vector<float>& a, const std::vector<float>& b, const std::vector<float>& odd) {
  const auto x = [&](int i) { return load(a.data() + i); };
  const auto y = [&](int i) { return load(b.data() + i); };
  const auto z = [&](int i) { return load(odd.data() + i); };
  print_vectors("add", [&](int i) { return x(i) + y(i); });
  print_vectors("subtract", [&](int i) { return x(i) - y(i); });
  print_vectors("multiply", [&](int i) { return x(i) * y(i); });
  print_vectors("divide", [&](int i) { return x(i) / y(i); });
  print_vectors("fma", [&](int i) { return fma(x(i), y(i), set1(0.1f)); });
  print_vectors("max", [&](int i) { return max(x(i), y(i)); });
  print_vectors("max of odd, x", [&](int i) { return max(z(i), x(i)); });
  print_vectors("max of x, odd", [&](int i) { return max(x(i), z(i)); });
  print_vectors("abs", [&](int i) { return abs(z(i)); });
  print_vectors("round", [&](int i) { return round(z(i)); });
  print_vectors("to_int", [&](int i) { return to_float(to_int(x(i))); });
  print_vectors("pow2", [&](int i) { return pow2(round(x(i))); });
  print_vectors("zero_below", [&](int i) { return zero_below(x(i), z(i), 0.5f); });
  print_vectors("exp", [&](int i) { return exp(set1(0.0f) - abs(x(i) * x(i))); });
  print_vectors("inputs", x);
  print_vectors("gelu", [&](int i) { return gelu(x(i)); });
  print_vectors("swish", [&](int i) { return swish(x(i)); });
  print_vectors("exp of odd", [&](int i) { return exp(set1(0.0f) - abs(z(i))); });
}

void print_int_functions(const std::vector<float>& a) {
  const auto x = [&](int i) { return bit_cast(load(a.data() + i)); };
  print_vectors("shift_right", [&](int i) { return to_float(shift_right<16>(x(i))); });
  print_vectors("bit_and", [&](int i) { return to_float(bit_and(x(i), set1(0x00ff00ff))); });
  print_vectors("add of int", [&](int i) { return to_float(add(x(i), set1(0x7fff))); });
  std::vector<int16_t> shorts(kCount);
  for (int i = 0; i < kCount; ++i) shorts[i] = static_cast<int16_t>(257 * i - 32768);
  print_vectors("load of int16", [&](int i) { return to_float(load(shorts.data() + i, kLanes)); });
  std::vector<int8_t> inputs(8 * kCount), weights(8 * kCount);  // of four bytes in each lane
  for (int i = 0; i < 8 * kCount; ++i) {
    inputs[i] = static_cast<int8_t>(i * 37 % 128);
    weights[i] = static_cast<int8_t>(i * 29 % 129 - 64);  // four of them are within every kPairSumLimit
  }
  print_vectors("dot_int8", [&](int i) {
    const int8_t *u = inputs.data() + 4 * i, *w = weights.data() + 4 * i;
    return to_float(dot_int8(set1(-5), load(u), load(w), load(u + 4 * kCount), load(w + 4 * kCount)));
  });
}

void print_partial(const std::vector<float>& a, const std::vector<float>& odd) {
  for (int n = 1; n < 4; ++n) {  // every build has four lanes or more
    const std::string count = std::to_string(n);
    std::vector<float> loaded(kLanes), stored(kLanes, 7.0f), blended(kLanes), halves(kLanes);
    std::vector<Bf16> bf16(kLanes, Bf16{0x4000});
    std::vector<uint8_t> bytes(kLanes, 9);
    std::vector<int16_t> shorts(kLanes, -300);
    std::vector<float> widened(kLanes);
    store(widened.data(), to_float(load(shorts.data(), n)));
    store(loaded.data(), load(a.data(), n));
    store(stored.data(), load(a.data()), n);
    store(blended.data(), blend(load(a.data()), n, set1(3.0f)));
    store_n(bf16.data(), load(odd.data() + n), n);
    store(halves.data(), load(bf16.data(), n));
    store_uint8(bytes.data(), to_int(abs(load(a.data())) * set1(20.0f)), n);
    for (auto* each : {&loaded, &stored, &blended, &halves, &widened}) each->resize(4);
    print(("load " + count).c_str(), loaded);
    print(("load of int16 " + count).c_str(), widened);
    print(("store " + count).c_str(), stored);
    print(("blend " + count).c_str(), blended);
    print(("bfloat16 " + count).c_str(), halves);
    print(("store_uint8 " + count).c_str(), std::vector<float>(bytes.begin(), bytes.begin() + 4));
  }
}

// Of whole numbers: the order of additions does not matter.
void print_reductions(const std::vector<float>& a, const std::vector<float>& odd) {
  std::vector<float> whole(kCount), sums(4, 0.0f), greater(kCount);
  for (int i = 0; i < kCount; ++i) whole[i] = std::nearbyint(a[i] * 100.0f);
  float largest = -kInfinity, total = 0.0f;
  int nans = 0;
  for (int i = 0; i < kCount; i += kLanes) {
    total += reduce_add(load(whole.data() + i));
    largest = std::max(largest, reduce_max(load(whole.data() + i)));
    nans += any_nan(load(odd.data() + i));
    const unsigned mask = greater_mask(load(a.data() + i), load(odd.data() + i));
    for (int lane = 0; lane < kLanes; ++lane) greater[i + lane] = static_cast<float>(mask >> lane & 1);
    const FloatVec x = load(whole.data() + i);
    float four[4];
    reduce_add4({x, x + x, abs(x), x - x}, 0.5f, four);
    for (int j = 0; j < 4; ++j) sums[j] += four[j];
  }
  print("reductions", {total, largest, static_cast<float>(nans > 0)});
  print("reduce_add4", sums);
  print("greater_mask", greater);
}

int main() {
  if (!cpu_supported()) return 3;
  const auto a = uniform(-12.0f, 12.0f, 1), b = uniform(-3.0f, 3.0f, 2);
  auto odd = uniform(-2.0f, 2.0f, 3);
  const float special[] = {0.0f, -0.0f, 0.5f, 1.5f, -2.5f, kInfinity, -kInfinity, 3e9f, -3e9f, 87.5f, -87.0f, 1e-40f};
  for (size_t i = 0; i < std::size(special); ++i) odd[2 * i] = special[i];
  odd[100] = std::nanf("");
  print_float_functions(a, b, odd);
  print_int_functions(a);
  print_partial(a, odd);
  print_reductions(a, odd);
}
