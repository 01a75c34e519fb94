// The weights of a Transformer, as pointers: they belong to the caller, or to a `LoadedModel`.
//
// Letters, here and in the files that use it: B sentences, S source tokens of all of them, R rows (hypotheses),
// D d_model, H heads, K d_k, V d_v, W vocabulary.
#pragma once

#include <memory>
#include <vector>

#include "matrix.h"
#include "memory.h"

namespace nmtkit {

struct LayerNorm {
  const float* gain;
  const float* bias;
  float epsilon;
};

struct SelfAttention {
  const Matrix *qkv, *out;
};

struct CrossAttention {
  const Matrix *q, *kv, *out;
};

enum class Activation { kRelu, kGelu, kSwish };

struct FeedForward {
  const Matrix *inner, *outer;
};

struct EncoderLayer {
  SelfAttention self_attention;
  FeedForward feed_forward;
  LayerNorm norms[2];
};

struct DecoderLayer {
  SelfAttention self_attention;
  CrossAttention cross_attention;
  FeedForward feed_forward;
  LayerNorm norms[3];
};

struct Model {
  int d_model, heads, d_k, d_v;
  bool pre_norm, embedding_norm;
  float embedding_scale;
  Activation activation;
  const Matrix *source_embedding = nullptr, *target_embedding = nullptr;  // (W, D)
  std::vector<EncoderLayer> encoder;
  std::vector<DecoderLayer> decoder;
  LayerNorm encoder_norm, decoder_norm;  // with pre_norm only
  LayerNorm source_norm, target_norm;    // with embedding_norm only
  const Matrix* output;
  const std::shared_ptr<BlockPool> pool = std::make_shared<BlockPool>();

  // Whether keys and values are stored in bfloat16 instead of fp32: attention waits for them, and int8 products are
  // less precise anyway.
  bool stores_bf16() const { return output->is_int8(); }
  int key_width() const { return heads * d_k; }
  int value_width() const { return heads * d_v; }
  int kv_width() const { return key_width() + value_width(); }  // the keys of all heads, then the values
  int qkv_width() const { return key_width() + kv_width(); }
};

// Uninitialized memory for the keys and values of `tokens` tokens in `layers` layers. Throws TooLarge, std::bad_alloc.
inline void* allocate_kv(const Model& model, Arena& arena, int tokens, size_t layers) {
  const size_t element = model.stores_bf16() ? sizeof(Bf16) : sizeof(float);
  return arena.take(checked_product(checked_product(tokens, layers), checked_product(model.kv_width(), element)));
}

}  // namespace nmtkit
