// The format of the cached keys and values of int8 models, and of activations and gradients when training in bf16.
#pragma once

#include <cstdint>

namespace nmtkit {

struct Bf16 {
  uint16_t bits;  // the upper half of a float
};

}  // namespace nmtkit
