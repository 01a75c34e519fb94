// The parts of a layer that encoder and decoder share (§3.1, §3.3, §3.4), and the memory that they work in.
#pragma once

#include <algorithm>
#include <climits>
#include <cmath>
#include <vector>

#include "attention.h"
#include "model.h"
#include "row_matrix.h"

namespace nmtkit {

// Activations of a block of rows, reused from step to step; one for each thread.
struct Workspace {
  std::vector<float> x, normed, y;         // (n, D)
  std::vector<float> wide, heads, scores;  // projections, attention's result and its weights
  Buffer logits;
  std::vector<const void*> kv;  // by position: keys and values, for `Attention`
  QuantizedInput quantized;
  RowMatrix::Input row_input;  // of the output, with shortlists

  // For n rows that attend to at most `positions` positions, with `logits_per_row`. All but the logits is indexed by
  // int. Throws TooLarge, std::bad_alloc.
  void reserve(const Model& model, size_t n, int positions, int logits_per_row) {
    size_t widest_input = std::max(model.d_model, model.value_width()), widest = model.qkv_width();
    const auto consider = [&](const FeedForward& layer) {
      widest_input = std::max<size_t>(widest_input, layer.outer->columns());
      widest = std::max<size_t>(widest, layer.inner->rows());
    };
    for (const auto& layer : model.encoder) consider(layer.feed_forward);
    for (const auto& layer : model.decoder) consider(layer.feed_forward);
    const auto grow = [](auto& part, size_t size) {
      if (size > INT_MAX) throw TooLarge("the batch is too large");
      part.resize(std::max(part.size(), size));
    };
    grow(x, n * model.d_model);
    grow(normed, n * model.d_model);
    grow(y, n * model.d_model);
    grow(wide, n * std::max(widest_input, widest));
    grow(heads, n * model.value_width());
    grow(scores, static_cast<size_t>(kQueryTile) * model.heads * padded_positions(positions));
    logits.reserve(n * logits_per_row);
    grow(kv, positions + 4);
    quantized.reserve(n, static_cast<int>(widest_input));
  }

  // Fill kv with address(i) for each position, and the last one again behind them, as `Attention` requires.
  template <class Address>
  void locate_kv(int positions, Address address) {
    for (int i = 0; i < positions; ++i) kv[i] = address(i);
    std::fill_n(kv.begin() + positions, 4, positions ? kv[positions - 1] : nullptr);
  }
};

// Each row of x (n, D), in place.
inline void normalize_rows(const Model& model, const Norm& norm, float* x, int n) {
  const int D = model.d_model;
  for (float* row = x; row < x + n * D; row += D)
    norm.bias ? static_cast<void>(normalize(row, norm.gain, norm.bias, model.norm_epsilon, D, row))
              : rms_normalize(row, norm.gain, model.norm_epsilon, D, row);
}

// x (n, D) = √D · embedding + position(i) of token i, normalized with embedding_norm. Rotary positions are not added.
template <class Position>
void embed(const Model& model, const Matrix& table, const Norm& norm, const int64_t* tokens, int n,
           Position position, float* x) {
  const int D = model.d_model;
  const float scale = model.embedding_scale;
  for (int i = 0; i < n; ++i) {
    float* own = x + i * D;
    const float* at = position(i);
    table.copy_row(static_cast<int>(tokens[i]), own);
    for_vectors(D, [=, &model](int j, int n) {
      const FloatVec added = model.rotary ? set1(0.0f) : load_n(at + j, n);
      store_n(own + j, fma(set1(scale), load_n(own + j, n), added), n);
    });
  }
  if (model.embedding_norm) normalize_rows(model, norm, x, n);
}

// The queries or the keys (H, K) of a token: normalized with this gain, and rotated to this position, unless null.
inline void prepare_heads(const Model& model, const float* gain, const float* rotation, float* heads) {
  for (float* head = heads; head < heads + model.key_width(); head += model.d_k) {
    if (gain) rms_normalize(head, gain, model.norm_epsilon, model.d_k, head);
    if (rotation) rotate(rotation, model.d_k / 2, head);
  }
}

// x = LayerNorm(x + sublayer(x)) as in the paper, or x + sublayer(LayerNorm(x)) with pre_norm. sublayer(in) writes to
// workspace.y.
template <class Sublayer>
void residual(const Model& model, const Norm& norm, float* x, int n, Workspace& workspace, Sublayer sublayer) {
  const int D = model.d_model;
  if (model.pre_norm) {
    std::copy(x, x + n * D, workspace.normed.data());
    normalize_rows(model, norm, workspace.normed.data(), n);
    sublayer(workspace.normed.data());
    add_in_place(workspace.y.data(), x, n * D);
  } else {
    sublayer(x);
    add_in_place(workspace.y.data(), x, n * D);
    normalize_rows(model, norm, x, n);
  }
}

// workspace.y = f(in·W₁ᵀ + b₁)·W₂ᵀ + b₂, with the model's activation f
inline void feed_forward(const Model& model, const FeedForward& layer, const float* in, int n, Workspace& workspace) {
  float* inner = workspace.wide.data();
  const int count = n * layer.inner->rows(), F = layer.outer->columns();
  layer.inner->multiply(in, n, inner, workspace.quantized, model.activation == Activation::kRelu);
  if (model.activation == Activation::kGelu) apply([](FloatVec x) { return gelu(x); }, inner, count);
  if (model.activation == Activation::kSwish) apply([](FloatVec x) { return swish(x); }, inner, count);
  if (model.activation == Activation::kSwiglu)  // a row ends before the first one that is still to be read
    for (int i = 0; i < n; ++i)
      for_vectors(F, [=](int j, int m) {
        const float* gate = inner + i * 2 * F + j;
        store_n(inner + i * F + j, swish(load_n(gate, m)) * load_n(gate + F, m), m);
      });
  layer.outer->multiply(inner, n, workspace.y.data(), workspace.quantized);
}

}  // namespace nmtkit
