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

// Layer norm, or RMSNorm without a bias.
struct Norm {
  const float* gain;
  const float* bias = nullptr;
};

struct SelfAttention {
  const Matrix *qkv, *out;
  const float *q_gain = nullptr, *k_gain = nullptr;  // (K,) of the RMSNorm of each head's queries and keys, if any
};

// In place of a decoder's self-attention: W, and W_f with its bias (nmtkit/model/ssru.py).
struct Ssru {
  const Matrix *value = nullptr, *gate = nullptr;
};

struct CrossAttention {
  const Matrix *q, *kv, *out;
  const float *q_gain = nullptr, *k_gain = nullptr;
};

enum class Activation { kRelu, kGelu, kSwish, kSwiglu };

struct FeedForward {
  const Matrix *inner, *outer;  // with kSwiglu, inner has the gate's rows first
};

struct EncoderLayer {
  SelfAttention self_attention;
  FeedForward feed_forward;
  Norm norms[2];
};

struct DecoderLayer {
  SelfAttention self_attention;
  CrossAttention cross_attention;
  FeedForward feed_forward;
  Norm norms[3];
  Ssru ssru = {};  // if any
};

struct Model {
  int d_model, heads, d_k, d_v;
  bool pre_norm, rms_norm = false, embedding_norm = false;
  float embedding_scale, norm_epsilon;
  bool rotary = false;  // positions rotate the queries and keys of self-attention, and are not added to embeddings
  Activation activation;
  const Matrix *source_embedding = nullptr, *target_embedding = nullptr;  // (W, D)
  std::vector<EncoderLayer> encoder;
  std::vector<DecoderLayer> decoder;
  Norm encoder_norm, decoder_norm;  // with pre_norm only
  Norm source_norm, target_norm;    // with embedding_norm only
  const Matrix* output;
  const std::shared_ptr<BlockPool> pool = std::make_shared<BlockPool>();

  // Whether keys and values are stored in bfloat16 instead of fp32: attention waits for them, and int8 products are
  // less precise anyway.
  bool stores_bf16() const { return output->is_int8(); }
  bool has_ssru() const { return decoder[0].ssru.value != nullptr; }
  int key_width() const { return heads * d_k; }
  int value_width() const { return heads * d_v; }
  int kv_width() const { return key_width() + value_width(); }  // the keys of all heads, then the values
  int position_width() const { return rotary ? d_k : d_model; }
  int qkv_width() const { return key_width() + kv_width(); }
};

// Uninitialized memory for the keys and values of `tokens` tokens in `layers` layers. Throws TooLarge, std::bad_alloc.
inline void* allocate_kv(const Model& model, Arena& arena, int tokens, size_t layers) {
  const size_t element = model.stores_bf16() ? sizeof(Bf16) : sizeof(float);
  return arena.take(checked_product(checked_product(tokens, layers), checked_product(model.kv_width(), element)));
}

}  // namespace nmtkit
