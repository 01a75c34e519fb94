// The encoder, and what the decoder needs of it: the keys and values of cross-attention.
#pragma once

#include <stdexcept>
#include <string>

#include "layers.h"

namespace nmtkit {

// Source sentences without padding, one after the other.
struct SourceBatch {
  static constexpr int kMaxTokens = 1 << 30;

  std::vector<int64_t> tokens;      // (S,)
  std::vector<int> starts{0};       // (B + 1,) of the sentences in `tokens`
  int longest = 0;

  // The first lengths[b] tokens of each row of `source` (B, width). Throws std::out_of_range for a length outside
  // 1..width, TooLarge, std::bad_alloc.
  SourceBatch(const int64_t* source, const int64_t* lengths, int sentences, int width) {
    for (int b = 0; b < sentences; ++b) {
      const int64_t* row = source + static_cast<size_t>(b) * width;
      if (lengths[b] < 1 || lengths[b] > width)
        throw std::out_of_range("a sentence has " + std::to_string(lengths[b]) + " of " + std::to_string(width) +
                                " tokens");
      const int length = static_cast<int>(lengths[b]);
      if (starts.back() > kMaxTokens - length) throw TooLarge("the batch has too many tokens");
      tokens.insert(tokens.end(), row, row + length);
      starts.push_back(starts.back() + length);
      longest = std::max(longest, length);
    }
  }

  int sentences() const { return static_cast<int>(starts.size()) - 1; }
  int size() const { return starts.back(); }
  int length(int b) const { return starts[b + 1] - starts[b]; }

  // Where groups of whole sentences begin that have at most kRowBlock tokens, or one sentence; at last, B.
  std::vector<int> groups() const {
    std::vector<int> begins(1, 0);
    for (int b = 1; b < sentences(); ++b)
      if (starts[b + 1] - starts[begins.back()] > kRowBlock) begins.push_back(b);
    begins.push_back(sentences());
    return begins;
  }
};

// The encoder for sentences `begin` to `end` - 1 of a batch.
class Encoder {
 public:
  Encoder(const Model& model, const SourceBatch& batch, int begin, int end, Workspace& workspace)
      : model_(model), batch_(batch), begin_(begin), end_(end), first_(batch.starts[begin]),
        n_(batch.starts[end] - first_), workspace_(workspace) {}

  // Encode the tokens at `positions` (longest, position_width), and store the keys and values of decoder layer l in cross_kv[l]
  // (S, H·(K + V)) of type T.
  template <class T>
  void run(const float* positions, const std::vector<void*>& cross_kv) {
    Workspace& w = workspace_;
    float* x = w.x.data();
    for (int b = begin_; b < end_; ++b)
      embed(
          model_, *model_.source_embedding, model_.source_norm, batch_.tokens.data() + batch_.starts[b], batch_.length(b),
          [&](int i) { return positions + static_cast<size_t>(i) * model_.position_width(); }, x + offset(b) * model_.d_model);
    for (const auto& layer : model_.encoder) {
      residual(model_, layer.norms[0], x, n_, w, [&](const float* in) { self_attention(layer.self_attention, in, positions); });
      residual(model_, layer.norms[1], x, n_, w,
               [&](const float* in) { feed_forward(model_, layer.feed_forward, in, n_, w); });
    }
    if (model_.pre_norm) normalize_rows(model_, model_.encoder_norm, x, n_);
    const int P = model_.kv_width();
    for (size_t l = 0; l < cross_kv.size(); ++l) {
      model_.decoder[l].cross_attention.kv->multiply(x, n_, w.wide.data(), w.quantized);
      for (int i = 0; i < n_; ++i)
        prepare_heads(model_, model_.decoder[l].cross_attention.k_gain, nullptr, w.wide.data() + static_cast<size_t>(i) * P);
      convert(w.wide.data(), static_cast<T*>(cross_kv[l]) + static_cast<size_t>(first_) * P, n_ * P);
    }
  }

 private:
  int offset(int b) const { return batch_.starts[b] - first_; }  // of a sentence among the n_ tokens

  // Self-attention within each sentence, into workspace.y.
  void self_attention(const SelfAttention& layer, const float* in, const float* positions) {
    Workspace& w = workspace_;
    layer.qkv->multiply(in, n_, w.wide.data(), w.quantized);
    for (int b = begin_; b < end_; ++b) {
      float* qkv = w.wide.data() + static_cast<size_t>(offset(b)) * model_.qkv_width();
      float* heads = w.heads.data() + static_cast<size_t>(offset(b)) * model_.value_width();
      const int length = batch_.length(b);
      for (int i = 0; i < length; ++i) {
        const float* rotation = model_.rotary ? positions + static_cast<size_t>(i) * model_.d_k : nullptr;
        float* own = qkv + static_cast<size_t>(i) * model_.qkv_width();
        prepare_heads(model_, layer.q_gain, rotation, own);
        prepare_heads(model_, layer.k_gain, rotation, own + model_.key_width());
      }
      const float* kv = qkv + model_.key_width();
      w.locate_kv(length, [&](int i) { return kv + static_cast<size_t>(i) * model_.qkv_width(); });
      int i = 0;
      for (; i + kQueryTile <= length; i += kQueryTile) attend_queries<kQueryTile>(qkv, i, length, heads);
      for (; i < length; ++i) attend_queries<1>(qkv, i, length, heads);
    }
    layer.out->multiply(w.heads.data(), n_, w.y.data(), w.quantized);
  }

  // Q queries from token i of a sentence on.
  template <int Q>
  void attend_queries(const float* qkv, int i, int length, float* heads) {
    const int stride = model_.qkv_width();
    const Attention<float, Q> attention(model_, workspace_.kv.data(), length);
    attention(qkv + static_cast<size_t>(i) * stride, stride, workspace_.scores.data(),
              heads + static_cast<size_t>(i) * model_.value_width());
  }

  const Model& model_;
  const SourceBatch& batch_;
  const int begin_, end_;
  const int first_, n_;  // their first token in the batch, and the number of their tokens
  Workspace& workspace_;
};

}  // namespace nmtkit
