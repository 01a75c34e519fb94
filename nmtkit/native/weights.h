// A model of named arrays. It owns packed matrices, and copies of everything else.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

#include "model.h"
#include "parallel.h"
#include "row_matrix.h"

namespace nmtkit {

// By the names of parameters in nmtkit/model/transformer.py.
using NamedArrays = std::map<std::string, WeightRows>;

class LoadedModel : public Model {
 public:
  // Throws std::out_of_range for a missing array or one of another shape, TooLarge, std::bad_alloc.
  LoadedModel(const Model& sizes, int encoder_layers, int decoder_layers, const NamedArrays& arrays, NumberFormat format,
              int threads)
      : Model(sizes), arrays_(arrays), format_(format) {
    embeddings();  // first, so that a thread packs these largest matrices while others pack the layers
    encoder.resize(encoder_layers);
    decoder.resize(decoder_layers);
    for (int l = 0; l < encoder_layers; ++l) {
      const std::string layer = "encoder." + std::to_string(l) + ".";
      self_attention(encoder[l].self_attention, layer);
      feed_forward(encoder[l].feed_forward, layer);
      encoder[l].norms[0] = norm(layer + "around_self_attention.norm");
      encoder[l].norms[1] = norm(layer + "around_feed_forward.norm");
    }
    for (int l = 0; l < decoder_layers; ++l) {
      const std::string layer = "decoder." + std::to_string(l) + ".", cross = layer + "cross_attention.";
      if (find(layer + "self_attention.gate.weight")) {
        matrix(&decoder[l].ssru.value, layer + "self_attention.value", d_model, d_model);
        matrix(&decoder[l].ssru.gate, layer + "self_attention.gate", d_model, d_model);
      } else {
        self_attention(decoder[l].self_attention, layer);
      }
      matrix(&decoder[l].cross_attention.q, cross + "q", key_width(), d_model);
      matrix(&decoder[l].cross_attention.kv, cross + "kv", kv_width(), d_model);
      matrix(&decoder[l].cross_attention.out, cross + "out", d_model, value_width());
      head_norms(decoder[l].cross_attention, cross);
      feed_forward(decoder[l].feed_forward, layer);
      decoder[l].norms[0] = norm(layer + "around_self_attention.norm");
      decoder[l].norms[1] = norm(layer + "around_cross_attention.norm");
      decoder[l].norms[2] = norm(layer + "around_feed_forward.norm");
    }
    if (pre_norm) {
      encoder_norm = norm("encoder_norm");
      decoder_norm = norm("decoder_norm");
    }
    embedding_norm = find("source_norm.weight") != nullptr;
    if (embedding_norm) {
      source_norm = norm("source_norm");
      target_norm = norm("target_norm");
    }
    pack(threads);
    if (!target_embedding) target_embedding = output;
    if (!source_embedding) source_embedding = target_embedding;
  }

  int source_size() const { return source_embedding->rows(); }

  // The output matrix for shortlists, made when it is first asked for. Throws std::bad_alloc.
  const RowMatrix& output_rows() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!output_rows_) output_rows_ = std::make_unique<RowMatrix>(*output);
    return *output_rows_;
  }

 private:
  struct Task {
    const Matrix** result;
    WeightRows weight;
    const float* bias;
  };

  const WeightRows* find(const std::string& name) const {
    const auto found = arrays_.find(name);
    return found == arrays_.end() ? nullptr : &found->second;
  }

  // The array with that name and shape; any number of rows if they are 0.
  const WeightRows& get(const std::string& name, int rows, int columns) const {
    const WeightRows* found = find(name);
    if (!found) throw std::out_of_range("the weights have no " + name);
    if ((rows && found->rows != rows) || found->columns != columns) throw std::out_of_range(name + " has a wrong shape");
    return *found;
  }

  const float* copy(const WeightRows& array) {
    const size_t size = checked_product(array.rows, array.columns);
    copies_.push_back(make_aligned<float>(size));
    std::copy(array.fp32, array.fp32 + size, copies_.back().get());
    return copies_.back().get();
  }

  // Without a bias, layer norm has zeros.
  Norm norm(const std::string& name) {
    const float* gain = copy(get(name + ".weight", d_model, 1));
    if (rms_norm) return {gain};
    if (find(name + ".bias")) return {gain, copy(get(name + ".bias", d_model, 1))};
    copies_.push_back(make_aligned<float>(d_model));
    return {gain, copies_.back().get()};
  }

  void matrix(const Matrix** result, const std::string& name, int rows, int columns) {
    const WeightRows& weight = get(name + ".weight", rows, columns);
    tasks_.push_back({result, weight, find(name + ".bias") ? get(name + ".bias", weight.rows, 1).fp32 : nullptr});
  }

  void self_attention(SelfAttention& attention, const std::string& layer) {
    matrix(&attention.qkv, layer + "self_attention.qkv", qkv_width(), d_model);
    matrix(&attention.out, layer + "self_attention.out", d_model, value_width());
    head_norms(attention, layer + "self_attention.");
  }

  template <class Attention>
  void head_norms(Attention& attention, const std::string& name) {
    if (!find(name + "q_norm.weight")) return;
    attention.q_gain = copy(get(name + "q_norm.weight", d_k, 1));
    attention.k_gain = copy(get(name + "k_norm.weight", d_k, 1));
  }

  void feed_forward(FeedForward& network, const std::string& layer) {
    matrix(&network.inner, layer + "feed_forward.inner", 0, d_model);
    const int inner = tasks_.back().weight.rows / (activation == Activation::kSwiglu ? 2 : 1);
    matrix(&network.outer, layer + "feed_forward.outer", d_model, inner);
  }

  void embeddings() {
    const WeightRows &target = get("target_embedding.weight", 0, d_model), *source = find("source_embedding.weight");
    const float* bias = find("projection_bias") ? get("projection_bias", target.rows, 1).fp32 : nullptr;
    const bool is_shared = !find("projection.weight");
    tasks_.push_back({&output, is_shared ? target : get("projection.weight", target.rows, d_model), bias});
    if (!is_shared) tasks_.push_back({&target_embedding, target, nullptr});
    if (source) tasks_.push_back({&source_embedding, get("source_embedding.weight", 0, d_model), nullptr});
  }

  void pack(int threads) {
    matrices_.resize(tasks_.size());
    std::atomic<bool> failed{false};
    parallel_for(static_cast<int>(tasks_.size()), threads, [&](int i, int) {
      try {
        matrices_[i] = std::make_unique<Matrix>(tasks_[i].weight, tasks_[i].bias, format_);
        *tasks_[i].result = matrices_[i].get();
      } catch (const std::exception&) {
        failed = true;
      }
    });
    tasks_.clear();
    if (failed) throw std::bad_alloc();
  }

  const NamedArrays& arrays_;  // while it is made
  const NumberFormat format_;
  std::vector<Task> tasks_;
  std::vector<std::unique_ptr<Matrix>> matrices_;
  std::vector<AlignedArray<float>> copies_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<RowMatrix> output_rows_;
};

}  // namespace nmtkit
