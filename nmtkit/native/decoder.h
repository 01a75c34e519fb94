// One step of the decoder for a block of rows.
#pragma once

#include "encoder.h"
#include "kv_cache.h"
#include "layers.h"

namespace nmtkit {

// Records the attention of one decoder layer to the source, the mean over its heads, if there are `weights`.
struct AttentionRecorder {
  size_t layer = 0;
  float* weights = nullptr;  // (R, width), zeros
  int width = 0;
  bool is_last = false;  // the step ends behind this attention

  // scores (heads, padded_positions(positions)) are those of a row.
  void record(int row, const float* scores, int heads, int positions) const {
    float* mean = weights + static_cast<size_t>(row) * width;
    for (int h = 0; h < heads; ++h)
      for (int i = 0; i < positions; ++i) mean[i] += scores[h * padded_positions(positions) + i] / static_cast<float>(heads);
  }
};

// The rows from `begin` on, n of them. The last position of the cache is that of this step.
class DecoderStep {
 public:
  DecoderStep(const Model& model, const SourceBatch& batch, const std::vector<void*>& cross_kv,
              const std::vector<int32_t>& sentence_of_row, KeyValueCache& kv_cache, SsruStates& states, int begin, int n,
              Workspace& workspace)
      : model_(model), batch_(batch), cross_kv_(cross_kv), sentence_of_row_(sentence_of_row), kv_cache_(kv_cache),
        states_(states), begin_(begin), n_(n), workspace_(workspace) {}

  // Decode a token of each row, of all the batch's `tokens` (R,), at a `position` (position_width). The decoder's
  // outputs (n, D) are left in workspace.x. T is the type of stored keys and values.
  template <class T>
  void run(const int64_t* tokens, const float* position, const AttentionRecorder& recorder) {
    Workspace& w = workspace_;
    float* x = w.x.data();
    embed(model_, *model_.target_embedding, model_.target_norm, tokens + begin_, n_, [&](int) { return position; }, x);
    for (size_t l = 0; l < model_.decoder.size(); ++l) {
      const auto& layer = model_.decoder[l];
      residual(model_, layer.norms[0], x, n_, w, [&](const float* in) {
        layer.ssru.value ? advance(l, in) : self_attention<T>(l, in, model_.rotary ? position : nullptr);
      });
      const bool is_recorded = recorder.weights && l == recorder.layer;
      residual(model_, layer.norms[1], x, n_, w,
               [&](const float* in) { cross_attention<T>(l, in, is_recorded ? &recorder : nullptr); });
      if (is_recorded && recorder.is_last) return;
      residual(model_, layer.norms[2], x, n_, w,
               [&](const float* in) { feed_forward(model_, layer.feed_forward, in, n_, w); });
    }
    if (model_.pre_norm) normalize_rows(model_, model_.decoder_norm, x, n_);
  }

 private:
  float* heads(int i) { return workspace_.heads.data() + static_cast<size_t>(i) * model_.value_width(); }

  // The states c = σ(gate) ⊙ c + (1 - σ(gate)) ⊙ value of SSRUs, and max(0, c) into workspace.y.
  void advance(size_t l, const float* in) {
    Workspace& w = workspace_;
    const auto& layer = model_.decoder[l].ssru;
    const int D = model_.d_model;
    layer.value->multiply(in, n_, w.wide.data(), w.quantized);
    layer.gate->multiply(in, n_, w.y.data(), w.quantized);
    for (int i = 0; i < n_; ++i) {
      const float* value = w.wide.data() + static_cast<size_t>(i) * D;
      float *y = w.y.data() + static_cast<size_t>(i) * D, *state = states_.at(begin_ + i, l);
      for_vectors(D, [=](int j, int m) {
        const FloatVec added = load_n(value + j, m), kept = load_n(state + j, m) - added;
        const FloatVec next = fma(sigmoid(load_n(y + j, m)), kept, added);
        store_n(state + j, next, m);
        store_n(y + j, max(set1(0.0f), next), m);  // in this order NaN stays NaN
      });
    }
  }

  template <class T>
  void self_attention(size_t l, const float* in, const float* rotation) {
    Workspace& w = workspace_;
    const auto& layer = model_.decoder[l].self_attention;
    const int now = kv_cache_.length() - 1;
    layer.qkv->multiply(in, n_, w.wide.data(), w.quantized);
    for (int i = 0; i < n_; ++i) {
      const int row = begin_ + i;
      float* qkv = w.wide.data() + static_cast<size_t>(i) * model_.qkv_width();
      prepare_heads(model_, layer.q_gain, rotation, qkv);
      prepare_heads(model_, layer.k_gain, rotation, qkv + model_.key_width());
      convert(qkv + model_.key_width(), kv_cache_.at<T>(now, row, l), model_.kv_width());
      w.locate_kv(now + 1, [&](int t) { return kv_cache_.at<T>(t, row, l); });
      for (int t = 0; t < now && i + 1 < n_; ++t) {
        const T* next = kv_cache_.at<T>(t, row + 1, l);
        prefetch(next, next + model_.kv_width());
      }
      Attention<T, 1>(model_, w.kv.data(), now + 1)(qkv, 0, w.scores.data(), heads(i));
    }
    layer.out->multiply(w.heads.data(), n_, w.y.data(), w.quantized);
  }

  template <class T>
  void cross_attention(size_t l, const float* in, const AttentionRecorder* recorder) {
    Workspace& w = workspace_;
    const auto& layer = model_.decoder[l].cross_attention;
    const auto kv = [&](int j) { return static_cast<T*>(cross_kv_[l]) + static_cast<size_t>(j) * model_.kv_width(); };
    layer.q->multiply(in, n_, w.wide.data(), w.quantized);
    for (int i = 0; i < n_; ++i) {
      const int b = sentence_of_row_[begin_ + i], next = i + 1 < n_ ? sentence_of_row_[begin_ + i + 1] : b;
      w.locate_kv(batch_.length(b), [&](int j) { return kv(batch_.starts[b] + j); });
      if (next != b) prefetch(kv(batch_.starts[next]), kv(batch_.starts[next + 1]));
      float* query = w.wide.data() + static_cast<size_t>(i) * model_.key_width();
      prepare_heads(model_, layer.q_gain, nullptr, query);
      Attention<T, 1>(model_, w.kv.data(), batch_.length(b))(query, 0, w.scores.data(), heads(i));
      if (recorder) recorder->record(begin_ + i, w.scores.data(), model_.heads, batch_.length(b));
    }
    layer.out->multiply(w.heads.data(), n_, w.y.data(), w.quantized);
  }

  const Model& model_;
  const SourceBatch& batch_;
  const std::vector<void*>& cross_kv_;
  const std::vector<int32_t>& sentence_of_row_;
  KeyValueCache& kv_cache_;
  SsruStates& states_;
  const int begin_, n_;
  Workspace& workspace_;
};

}  // namespace nmtkit
