// A batch of sentences during a search: encoded once, then decoded step by step (§3.1).
//
// The layers are those of nmtkit/model, which trains. Here a block of rows goes through all layers while it is in the
// nearer caches, and each thread has blocks of its own from the embedding to the logits.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "decoder.h"
#include "encoder.h"
#include "log_softmax.h"
#include "parallel.h"
#include "shortlists.h"
#include "top_k.h"

namespace nmtkit {

// Not thread-safe, but several searches may use one model at once.
class DecoderState {
 public:
  // Encodes `source` (B, width), of whose rows the first lengths[b] tokens count, at `positions` (width, position_width). Each
  // sentence has one row. Throws std::out_of_range for a length outside 1..width, TooLarge, std::bad_alloc.
  DecoderState(const Model& model, const int64_t* source, const int64_t* lengths, int sentences, int width,
         const float* positions, int threads)
      : model_(model), arena_(model.pool), batch_(source, lengths, sentences, width), sentence_of_row_(sentences),
        kv_cache_(model, arena_), states_(model, sentences) {
    std::iota(sentence_of_row_.begin(), sentence_of_row_.end(), 0);
    for (size_t l = 0; l < model.decoder.size(); ++l)
      cross_kv_.push_back(allocate_kv(model, arena_, batch_.size(), 1));
    const std::vector<int> groups = batch_.groups();
    const int count = static_cast<int>(groups.size()) - 1;
    reserve(std::min(threads, count), std::min(std::max(kRowBlock, batch_.longest), batch_.size()), 0);
    parallel_for(count, threads, [&](int group, int thread) {
      Encoder encoder(model_, batch_, groups[group], groups[group + 1], workspaces_[thread]);
      model_.stores_bf16() ? encoder.run<Bf16>(positions, cross_kv_) : encoder.run<float>(positions, cross_kv_);
    });
  }

  const Model& model() const { return model_; }
  int longest_source() const { return batch_.longest; }
  int rows() const { return static_cast<int>(sentence_of_row_.size()); }

  // Row i continues the row origins[i]; the rows of a sentence stay together. Throws std::out_of_range, std::bad_alloc.
  void reorder(const int64_t* origins, int rows) {
    check(origins, rows, this->rows(), "row");
    std::vector<int32_t> sentences(rows);
    for (int i = 0; i < rows; ++i) sentences[i] = sentence_of_row_[origins[i]];
    states_.reorder(origins, rows);
    kv_cache_.reorder(origins, rows);
    sentence_of_row_ = std::move(sentences);
  }

  // From now on, the output of each sentence has only the tokens of its shortlist. The output matrix of the shortlists
  // must outlive this object. Throws std::out_of_range for a wrong number of sentences.
  void restrict_to(Shortlists shortlists) {
    if (shortlists.sentences() != batch_.sentences()) throw std::out_of_range("each sentence needs a shortlist");
    shortlists_.emplace(std::move(shortlists));
  }

  // Decode a token of each row (R,) at a `position` (position_width), into the log-probabilities (R, W) of the next tokens. Throws
  // std::out_of_range, TooLarge, std::bad_alloc.
  void step(const int64_t* tokens, int R, const float* position, float* log_probs, int threads) {
    const int W = model_.output->rows();
    if (shortlists_) std::fill_n(log_probs, static_cast<size_t>(R) * W, -kInfinity);
    decode(tokens, R, position, threads, 0, [&](int begin, int n, Workspace& w) {
      float* out = log_probs + static_cast<size_t>(begin) * W;
      if (shortlists_)
        return shortlist_logits(begin, n, w, [&](int i, const int32_t* ids, int count, float* logits) {
          log_softmax(logits, count);
          for (int j = 0; j < count; ++j) out[static_cast<size_t>(i) * W + ids[j]] = logits[j];
        });
      model_.output->multiply(w.x.data(), n, out, w.quantized);
      for (int i = 0; i < n; ++i) {
        mask_never_output(out + static_cast<size_t>(i) * W, W);
        log_softmax(out + static_cast<size_t>(i) * W, W);
      }
    });
  }

  // The same, but only the k best tokens of each row and their log-probabilities (R, k), without the excluded tokens.
  // A thread has all W logits of one block of rows at a time.
  void best_step(const int64_t* tokens, int R, const float* position, const std::vector<int64_t>& excluded, int k,
                 float* log_probs, int64_t* best_tokens, int threads) {
    const int W = model_.output->rows();
    check(excluded.data(), static_cast<int>(excluded.size()), W, "token");
    if (k < 0 || k > W) throw std::out_of_range("there are no " + std::to_string(k) + " tokens");
    decode(tokens, R, position, threads, shortlists_ ? 0 : W, [&](int begin, int n, Workspace& w) {
      if (shortlists_)
        return shortlist_logits(begin, n, w, [&](int i, const int32_t* ids, int count, float* logits) {
          const size_t at = static_cast<size_t>(begin + i) * k;
          best_of_shortlist(ids, count, logits, excluded, k, log_probs + at, best_tokens + at);
        });
      model_.output->multiply(w.x.data(), n, w.logits.data(), w.quantized);
      for (int i = 0; i < n; ++i) {
        float* logits = w.logits.data() + static_cast<size_t>(i) * W;
        mask_never_output(logits, W);
        const LogSumExp normalize = log_sum_exp(logits, W);
        for (const int64_t token : excluded) logits[token] = -kInfinity;
        const size_t at = static_cast<size_t>(begin + i) * k;
        top_k(logits, W, k, normalize, log_probs + at, best_tokens + at);
      }
    });
  }

  // Record the attention of decoder layer `layer` to the source during the next step: its mean over the heads is added to
  // weights (R, longest_source()).
  void record_attention(int layer, float* weights) {
    if (layer < 0 || layer >= static_cast<int>(model_.decoder.size())) throw std::out_of_range("there is no such layer");
    recorder_ = {static_cast<size_t>(layer), weights, batch_.longest};
  }

  // Decode a token of each row only as far as the attention to record. All steps of a search must be of this kind.
  void attend(const int64_t* tokens, int R, const float* position, int threads) {
    recorder_.is_last = true;
    decode(tokens, R, position, threads, 0, [](int, int, Workspace&) {});
  }

 private:
  static void check(const int64_t* numbers, int n, int end, const char* what) {
    for (int i = 0; i < n; ++i)
      if (numbers[i] < 0 || numbers[i] >= end)
        throw std::out_of_range("there is no " + std::string(what) + " " + std::to_string(numbers[i]));
  }

  // Call use(row of the block, ids, count, logits) for each row, with the logits (count,) of its sentence's shortlist.
  // The decoder's outputs are in workspace.x.
  template <class Use>
  void shortlist_logits(int begin, int n, Workspace& w, Use use) {
    shortlists_->output().prepare(w.x.data(), n, w.quantized, w.row_input);
    for (int i = 0, end; i < n; i = end) {
      const int b = sentence_of_row_[begin + i], count = shortlists_->size(b);
      for (end = i + 1; end < n && sentence_of_row_[begin + end] == b;) ++end;
      shortlists_->output().multiply(w.row_input, i, end - i, shortlists_->ids(b), count, w.logits.data());
      for (int row = i; row < end; ++row)
        use(row, shortlists_->ids(b), count, w.logits.data() + static_cast<size_t>(row - i) * count);
    }
  }

  // The k best tokens of a shortlist and their log-probabilities (k,). If it has fewer, the others are padding and -∞.
  static void best_of_shortlist(const int32_t* ids, int count, float* logits, const std::vector<int64_t>& excluded,
                                int k, float* log_probs, int64_t* best_tokens) {
    const LogSumExp normalize = log_sum_exp(logits, count);
    for (const int64_t token : excluded) {
      const int32_t* found = std::lower_bound(ids, ids + count, token);
      if (found != ids + count && *found == token) logits[found - ids] = -kInfinity;
    }
    const int kept = std::min(k, count);
    top_k(logits, count, kept, normalize, log_probs, best_tokens);
    for (int j = 0; j < kept; ++j) best_tokens[j] = ids[best_tokens[j]];
    std::fill(log_probs + kept, log_probs + k, -kInfinity);
    std::fill(best_tokens + kept, best_tokens + k, 0);
  }

  // Decode a token of each row, block by block, and call output(begin, n, workspace) after each block, with the
  // decoder's outputs in workspace.x and memory for `logits_per_row`.
  template <class Output>
  void decode(const int64_t* tokens, int R, const float* position, int threads, int logits_per_row,
              Output output) {
    const AttentionRecorder recorder = std::exchange(recorder_, {});
    if (R != rows()) throw std::out_of_range("a token is needed for each row");
    check(tokens, R, model_.output->rows(), "token");
    const RowBlocks blocks(R, threads);
    reserve(std::min(threads, blocks.count()), blocks.max_size(), logits_per_row);
    if (!model_.has_ssru()) kv_cache_.append(R);  // the last that may throw
    parallel_for(blocks.count(), threads, [&](int block, int thread) {
      const int begin = blocks.begin(block), n = blocks.end(block) - begin;
      Workspace& w = workspaces_[thread];
      DecoderStep step(model_, batch_, cross_kv_, sentence_of_row_, kv_cache_, states_, begin, n, w);
      model_.stores_bf16() ? step.run<Bf16>(tokens, position, recorder) : step.run<float>(tokens, position, recorder);
      output(begin, n, w);
    });
  }

  // Workspaces for the next step, or for the encoder. Throws TooLarge, std::bad_alloc.
  void reserve(int threads, int rows, int logits_per_row) {
    workspaces_.resize(std::max<size_t>(workspaces_.size(), std::max(threads, 1)));
    const int positions = std::max(batch_.longest, kv_cache_.length() + 1);
    if (shortlists_) logits_per_row = shortlists_->longest();
    for (int thread = 0; thread < std::max(threads, 1); ++thread) {
      workspaces_[thread].reserve(model_, rows, positions, logits_per_row);
      if (shortlists_) shortlists_->output().reserve(workspaces_[thread].row_input, rows);
    }
  }

  const Model& model_;
  Arena arena_;
  SourceBatch batch_;
  std::vector<void*> cross_kv_;           // by layer: (S, H·(K + V)) of cross-attention
  std::vector<int32_t> sentence_of_row_;  // (R,)
  KeyValueCache kv_cache_;
  SsruStates states_;
  std::optional<Shortlists> shortlists_;
  AttentionRecorder recorder_;  // of the next step
  std::vector<Workspace> workspaces_;  // by thread
};

}  // namespace nmtkit
