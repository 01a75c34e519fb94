// The Transformer for search: the encoder once, the decoder step by step with what it remembers (§3.1 - §3.5).
//
// The layers are those of nmtkit/model, which trains; here all that a block of rows needs goes through all layers
// while it is in the nearer caches, and each thread has rows of its own from the bottom to the top.
//
// Letters: B sentences, S source tokens of all of them, R rows (hypotheses), T positions so far, D d_model.
#pragma once

#include <atomic>
#include <climits>
#include <stdexcept>
#include <string>
#include <thread>

#include "choice.h"
#include "matrix.h"
#include "memory.h"

namespace nmtkit {

constexpr int kFewest = 8;             // rows that a thread is worth starting for
constexpr int kMostTokens = 1 << 30;  // of a batch

struct Norm {
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

struct FeedForward {
  const Matrix *inner, *outer;
};

struct EncoderLayer {
  SelfAttention self;
  FeedForward feed_forward;
  Norm norms[2];
};

struct DecoderLayer {
  SelfAttention self;
  CrossAttention cross;
  FeedForward feed_forward;
  Norm norms[3];
};

// All that is pointed to belongs to the caller, and outlives the model.
struct Model {
  int d_model, heads, d_k, d_v;
  bool pre_norm;
  const float *source_embedding, *target_embedding;  // (W, D)
  std::vector<EncoderLayer> encoder;
  std::vector<DecoderLayer> decoder;
  Norm encoder_norm, decoder_norm;  // of pre-norm
  const Matrix* output;
  const std::shared_ptr<Spare> spare = std::make_shared<Spare>();

  // Whether keys and values are kept in 16 bits: they are what attention waits for, and of 8-bit products anyway.
  bool short_pairs() const { return output->eight_bits(); }
  int key_width() const { return heads * d_k; }
  int pair_width() const { return heads * (d_k + d_v); }  // of a token's keys, then its values, in all heads
};

// Call work(part, thread) for each part from 0 to `parts`, by `threads` side by side, each taking the next that nobody
// has taken: a core may be slower than the others for a while. `work` may not throw.
template <class Work>
void share_out(int parts, int threads, Work work) {
  std::atomic<int> next{0};
  const auto take = [&](int thread) {
    for (int part; (part = next++) < parts;) work(part, thread);
  };
  std::vector<std::thread> others;
  others.reserve(std::max(std::min(threads, parts), 1));
  try {
    while (static_cast<int>(others.size()) + 1 < std::min(threads, parts))
      others.emplace_back(take, static_cast<int>(others.size()) + 1);
  } catch (const std::exception&) {  // no more threads are to be had
  }
  take(0);
  for (auto& other : others) other.join();
}

// The blocks into which n rows are cut, all of about the same size: each passes over the weights, so they are as large as
// the threads allow.
class Blocks {
 public:
  Blocks(int rows, int threads) : rows_(rows) {
    const int64_t least = (int64_t{rows} + kBlock - 1) / kBlock, most = std::max<int64_t>(least, rows / kFewest);
    threads = std::max(threads, 1);
    count_ = static_cast<int>(std::min((least + threads - 1) / threads * threads, most));
  }

  int count() const { return count_; }
  int largest() const { return count_ ? (rows_ - 1) / count_ + 1 : 0; }
  int begin(int block) const { return static_cast<int>(static_cast<int64_t>(rows_) * block / count_); }
  int end(int block) const { return begin(block + 1); }

 private:
  int rows_, count_;
};

// Of so many positions with those that make whole fours of them.
inline int padded(int positions) { return (positions + 3) / 4 * 4; }

// Have memory come nearer that will be read soon: attention waits for it more than it computes.
inline void ask_for(const void* begin, const void* end) {
  for (auto at = static_cast<const char*>(begin); at < end; at += 64) __builtin_prefetch(at, 0, 2);
}

// Memory for what goes through the layers, for one thread: kept, since fresh memory costs more than what is done in it.
struct Scratch {
  std::vector<float> x, normed, y, wide, heads, scores;
  Room logits;
  std::vector<const void*> places;
  Rounded rounded;

  // Room for n rows that attend to at most `longest` positions, with so many logits each. But for the logits, ints index
  // it, and so no more of it than they can. Throws TooLarge, std::bad_alloc.
  void reserve(const Model& model, size_t n, int longest, int of_logits) {
    size_t widest = std::max(model.d_model, model.heads * model.d_v);  // of what a matrix takes
    for (const auto& layer : model.encoder) widest = std::max<size_t>(widest, layer.feed_forward.outer->columns());
    for (const auto& layer : model.decoder) widest = std::max<size_t>(widest, layer.feed_forward.outer->columns());
    const auto room = [](auto& part, size_t size) {
      if (size > INT_MAX) throw TooLarge("a batch is too large");
      part.resize(std::max(part.size(), size));
    };
    room(x, n * model.d_model);
    room(normed, n * model.d_model);
    room(y, n * model.d_model);
    room(wide, n * std::max<size_t>(widest, model.key_width() + model.pair_width()));
    room(heads, n * model.heads * model.d_v);
    room(scores, static_cast<size_t>(kQueries) * model.heads * padded(longest));
    logits.reserve(n * of_logits);
    room(places, longest + 4);
    rounded.reserve(n, static_cast<int>(widest));
  }

  // Note where the keys of each position stand; behind them the last one's again, for `attend`.
  template <class Place>
  void find(int positions, Place place) {
    for (int i = 0; i < positions; ++i) places[i] = place(i);
    std::fill_n(places.begin() + positions, 4, positions ? places[positions - 1] : nullptr);
  }
};

// What Q queries (H·K each, `step` numbers further each time) attend to, into heads (Q, H·V): places[i] is where the keys
// (H·K) and then the values (H·V) of position i stand, numbers of type T; behind the last of them come four more readable
// ones. `scores` has room for Q times those of `padded(positions)` in each head.
template <class T, int Q>
inline void attend(const Model& model, const float* queries, int step, const void* const* places, int positions,
                   float* scores, float* heads) {
  const int H = model.heads, K = model.d_k, V = model.d_v, stride = padded(positions);
  const auto pair = [places](int i) { return static_cast<const T*>(places[i]); };
  const __m128 scale = _mm_set1_ps(1.0f / std::sqrt(static_cast<float>(K)));
  for (int i = 0; i < positions; i += 4)  // position by position, as they stand in memory
    for (int h = 0; h < H; ++h) {
      Floats products[Q][4];
      for (auto& of_query : products) std::fill_n(of_query, 4, every(0.0f));
      for_vectors(K, [&](int k, int n) {
        for (int p = 0; p < 4; ++p) {
          const Floats keys = load_some(pair(i + p) + h * K + k, n);
          for (int q = 0; q < Q; ++q)
            products[q][p] = fma(load_some(queries + q * step + h * K + k, n), keys, products[q][p]);
        }
      });
      for (int q = 0; q < Q; ++q)
        _mm_storeu_ps(scores + (q * H + h) * stride + i,
                      _mm_mul_ps(sums(products[q][0], products[q][1], products[q][2], products[q][3]), scale));
    }
  for (int row = 0; row < Q * H; ++row) softmax(scores + row * stride, positions);
  const auto weigh = [&](int v, int n, auto vectors) {  // of the heads' values those from v on: n in each vector
    Floats weighted[Q][vectors];
    const float* weights[vectors];  // of the first query
    for (auto& of_query : weighted) std::fill_n(of_query, vectors(), every(0.0f));
    for (int j = 0; j < vectors; ++j) weights[j] = scores + (v + j * kLanes) / V * stride;
    for (int i = 0; i < positions; ++i) {
      const T* values = pair(i) + H * K + v;
      for (int j = 0; j < vectors; ++j) {
        const Floats value = load_some(values + j * kLanes, n);
        for (int q = 0; q < Q; ++q)
          weighted[q][j] = fma(every(weights[j][q * H * stride + i]), value, weighted[q][j]);
      }
    }
    for (int q = 0; q < Q; ++q)
      for (int j = 0; j < vectors; ++j) store_some(heads + q * H * V + v + j * kLanes, weighted[q][j], n);
  };
  using Many = std::integral_constant<int, kSums / Q>;
  using One = std::integral_constant<int, 1>;
  int v = 0;
  if (V % kLanes == 0)
    for (; v + Many() * kLanes <= H * V; v += Many() * kLanes) weigh(v, kLanes, Many());
  for (int h = v / V; h < H; ++h)
    for_vectors(V, [&](int j, int n) {
      if (h * V + j >= v) weigh(h * V + j, n, One());
    });
}

// LayerNorm(x + Sublayer(x)) as in the paper, or x + Sublayer(LayerNorm(x)); `sublayer(in)` leaves its result in s.y.
template <class Sublayer>
void residual(const Model& model, const Norm& norm, float* x, int n, Scratch& s, Sublayer sublayer) {
  const int D = model.d_model;
  const auto normalize_all = [&](float* rows) {
    for (int i = 0; i < n; ++i) normalize(rows + i * D, norm.gain, norm.bias, norm.epsilon, D);
  };
  if (model.pre_norm) {
    std::copy(x, x + n * D, s.normed.data());
    normalize_all(s.normed.data());
    sublayer(s.normed.data());
    add(s.y.data(), x, n * D);
  } else {
    sublayer(x);
    add(s.y.data(), x, n * D);
    normalize_all(x);
  }
}

inline void feed_forward(const FeedForward& layer, const float* in, int n, Scratch& s) {
  layer.inner->multiply(in, n, s.wide.data(), s.rounded, true);
  layer.outer->multiply(s.wide.data(), n, s.y.data(), s.rounded);
}

// x = √D · embedding + position, for n tokens; position(i) is that of token i.
template <class Position>
void embed(const Model& model, const float* table, const int64_t* tokens, int n, Position position, float* x) {
  const int D = model.d_model;
  const float scale = std::sqrt(static_cast<float>(D));
  for (int i = 0; i < n; ++i) {
    std::copy(position(i), position(i) + D, x + i * D);
    add_scaled(scale, table + tokens[i] * D, x + i * D, D);
  }
}

// The sentences of a batch, encoded, and their hypotheses as the decoder has seen them.
class Search {
 public:
  // Encodes the first lengths[b] tokens of each row of `source` (B, S); `positions` (S, D). Throws std::out_of_range for
  // a length that is not from 1 to S, TooLarge, std::bad_alloc.
  Search(const Model& model, const int64_t* source, const int64_t* lengths, int sentences, int width,
         const float* positions, int threads)
      : model_(model), arena_(model.spare), starts_(1, 0), owners_(sentences) {
    for (int b = 0; b < sentences; ++b) {
      const int64_t* row = source + static_cast<size_t>(b) * width;
      if (lengths[b] < 1 || lengths[b] > width)
        throw std::out_of_range("a sentence has " + std::to_string(lengths[b]) + " of " + std::to_string(width) + " tokens");
      const int length = static_cast<int>(lengths[b]);
      if (starts_.back() > kMostTokens - length) throw TooLarge("a batch has too many tokens");
      tokens_.insert(tokens_.end(), row, row + length);
      starts_.push_back(starts_.back() + length);
      longest_ = std::max(longest_, length);
      owners_[b] = b;
    }
    for (size_t l = 0; l < model.decoder.size(); ++l)
      memory_.push_back(room(starts_.back(), 1));
    std::vector<int> groups(1, 0);  // of sentences that have a block of tokens together
    for (int b = 1; b < sentences; ++b)
      if (starts_[b + 1] - starts_[groups.back()] > kBlock) groups.push_back(b);
    groups.push_back(sentences);
    const int count = static_cast<int>(groups.size()) - 1;
    prepare(std::min(threads, count), std::min(std::max(kBlock, longest_), starts_.back()), 0, 0);
    share_out(count, threads, [&](int group, int thread) {
      if (model_.short_pairs())
        encode<Bf16>(groups[group], groups[group + 1], positions, scratch_[thread]);
      else
        encode<float>(groups[group], groups[group + 1], positions, scratch_[thread]);
    });
  }

  int rows() const { return static_cast<int>(owners_.size()); }

  // Row i goes on from row origins[i]; the rows of a sentence stay together. Throws std::out_of_range, std::bad_alloc.
  void reorder(const int64_t* origins, int rows) {
    check(origins, rows, this->rows(), "row");
    const auto moved = [&](const std::vector<int32_t>& column) {
      std::vector<int32_t> found(rows);
      for (int i = 0; i < rows; ++i) found[i] = column[origins[i]];
      return found;
    };
    auto owners = moved(owners_);
    std::vector<std::vector<int32_t>> places;
    for (const auto& column : places_) places.push_back(moved(column));
    owners_ = std::move(owners);
    places_ = std::move(places);
  }

  // Feed a token to each row; `position` (D) is that of all of them, `log_probs` (R, W) those of the next tokens.
  // Throws std::out_of_range, std::bad_alloc.
  void step(const int64_t* tokens, int R, const float* position, float* log_probs, int threads) {
    const int W = model_.output->rows();
    advance(tokens, R, position, threads, 0, [&](int from, int n, Scratch& s) {
      float* out = log_probs + static_cast<size_t>(from) * W;
      model_.output->multiply(s.x.data(), n, out, s.rounded);
      for (int i = 0; i < n; ++i) log_softmax(out + static_cast<size_t>(i) * W, W);
    });
  }

  // The same, but the `count` best tokens of each row and their log-probabilities (R, count), without those that may
  // `never` come. A thread has all W of a block of rows at a time.
  void best_step(const int64_t* tokens, int R, const float* position, const std::vector<int64_t>& never, int count,
                 float* log_probs, int64_t* best_tokens, int threads) {
    const int W = model_.output->rows();
    check(never.data(), static_cast<int>(never.size()), W, "token");
    if (count < 0 || count > W) throw std::out_of_range("there are no " + std::to_string(count) + " tokens");
    advance(tokens, R, position, threads, W, [&](int from, int n, Scratch& s) {
      model_.output->multiply(s.x.data(), n, s.logits.data(), s.rounded);
      for (int i = 0; i < n; ++i) {
        float* logits = s.logits.data() + static_cast<size_t>(i) * W;
        const LogTotal less = log_total(logits, W);
        for (const int64_t token : never) logits[token] = -kInfinity;
        const size_t at = static_cast<size_t>(from + i) * count;
        best(logits, W, count, less, log_probs + at, best_tokens + at);
      }
    });
  }

 private:
  static void check(const int64_t* numbers, int n, int end, const char* what) {
    for (int i = 0; i < n; ++i)
      if (numbers[i] < 0 || numbers[i] >= end)
        throw std::out_of_range("there is no " + std::string(what) + " " + std::to_string(numbers[i]));
  }

  // Memory for the keys and values of so many tokens or rows in so many layers. Throws TooLarge, std::bad_alloc.
  void* room(int tokens, size_t layers) {
    const size_t number = model_.short_pairs() ? sizeof(Bf16) : sizeof(float);
    return arena_.take(product(product(tokens, layers), product(model_.pair_width(), number)));
  }

  // Feed a token to each row, and call output(from, n, scratch) for the rows that a thread has had, their decoder outputs
  // in scratch.x and room for so many logits a row.
  template <class Output>
  void advance(const int64_t* tokens, int R, const float* position, int threads, int logits, Output output) {
    if (R != rows()) throw std::out_of_range("a token is needed for each row");
    check(tokens, R, model_.output->rows(), "token");
    const Blocks blocks(R, threads);
    prepare(std::min(threads, blocks.count()), blocks.largest(), static_cast<int>(past_.size()) + 1, logits);
    std::vector<int32_t> here(R);
    std::iota(here.begin(), here.end(), 0);
    past_.reserve(past_.size() + 1);
    places_.reserve(places_.size() + 1);
    past_.push_back(room(R, model_.decoder.size()));  // the last that may throw
    places_.push_back(std::move(here));
    share_out(blocks.count(), threads, [&](int block, int thread) {
      const int from = blocks.begin(block);
      const int n = blocks.end(block) - from;
      if (model_.short_pairs())
        decode<Bf16>(tokens, position, from, n, scratch_[thread]);
      else
        decode<float>(tokens, position, from, n, scratch_[thread]);
      output(from, n, scratch_[thread]);
    });
  }

  // Memory for so many threads that have at most so many rows each, after so many steps. Throws std::bad_alloc.
  void prepare(int threads, int rows, int steps, int logits) {
    scratch_.resize(std::max<size_t>(scratch_.size(), std::max(threads, 1)));
    const int longest = std::max(longest_, steps);
    for (int thread = 0; thread < std::max(threads, 1); ++thread)
      scratch_[thread].reserve(model_, rows, longest, logits);
  }

  template <class Kept>
  void encode(int from, int to, const float* positions, Scratch& s) {
    const int first = starts_[from], n = starts_[to] - first, D = model_.d_model;
    const int K = model_.key_width(), width = K + model_.pair_width();
    float* x = s.x.data();
    for (int b = from; b < to; ++b)
      embed(
          model_, model_.source_embedding, tokens_.data() + starts_[b], starts_[b + 1] - starts_[b],
          [&](int i) { return positions + static_cast<size_t>(i) * D; }, x + (starts_[b] - first) * D);
    for (const auto& layer : model_.encoder) {
      residual(model_, layer.norms[0], x, n, s, [&](const float* in) {
        layer.self.qkv->multiply(in, n, s.wide.data(), s.rounded);
        for (int b = from; b < to; ++b) {
          const float* qkv = s.wide.data() + static_cast<size_t>(starts_[b] - first) * width;
          const int length = starts_[b + 1] - starts_[b];
          s.find(length, [&](int j) { return qkv + static_cast<size_t>(j) * width + K; });
          const auto queries = [&](int i, auto count) {
            attend<float, count>(model_, qkv + static_cast<size_t>(i) * width, width, s.places.data(), length,
                                 s.scores.data(),
                                 s.heads.data() + static_cast<size_t>(starts_[b] - first + i) * layer.self.out->columns());
          };
          int i = 0;
          for (; i + kQueries <= length; i += kQueries) queries(i, std::integral_constant<int, kQueries>());
          for (; i < length; ++i) queries(i, std::integral_constant<int, 1>());
        }
        layer.self.out->multiply(s.heads.data(), n, s.y.data(), s.rounded);
      });
      residual(model_, layer.norms[1], x, n, s, [&](const float* in) { feed_forward(layer.feed_forward, in, n, s); });
    }
    finish(model_.encoder_norm, x, n);
    const int P = model_.pair_width();
    for (size_t l = 0; l < memory_.size(); ++l) {
      model_.decoder[l].cross.kv->multiply(x, n, s.wide.data(), s.rounded);
      copy(s.wide.data(), static_cast<Kept*>(memory_[l]) + static_cast<size_t>(first) * P, n * P);
    }
  }

  template <class Kept>
  void decode(const int64_t* tokens, const float* position, int from, int n, Scratch& s) {
    const int T = static_cast<int>(past_.size()), K = model_.key_width(), P = model_.pair_width();
    const size_t layers = model_.decoder.size();
    float* x = s.x.data();
    embed(model_, model_.target_embedding, tokens + from, n, [&](int) { return position; }, x);
    for (size_t l = 0; l < layers; ++l) {
      const auto& layer = model_.decoder[l];
      residual(model_, layer.norms[0], x, n, s, [&](const float* in) {
        layer.self.qkv->multiply(in, n, s.wide.data(), s.rounded);
        for (int i = 0; i < n; ++i) {
          const float* qkv = s.wide.data() + static_cast<size_t>(i) * (K + P);
          const auto pair = [&](int t, int row) {
            return static_cast<Kept*>(past_[t]) + (static_cast<size_t>(row) * layers + l) * P;
          };
          copy(qkv + K, pair(T - 1, from + i), P);
          s.find(T, [&](int t) { return pair(t, places_[t][from + i]); });
          for (int t = 0; t + 1 < T && i + 1 < n; ++t) {
            const Kept* next = pair(t, places_[t][from + i + 1]);
            ask_for(next, next + P);
          }
          attend<Kept, 1>(model_, qkv, 0, s.places.data(), T, s.scores.data(),
                 s.heads.data() + static_cast<size_t>(i) * layer.self.out->columns());
        }
        layer.self.out->multiply(s.heads.data(), n, s.y.data(), s.rounded);
      });
      residual(model_, layer.norms[1], x, n, s, [&](const float* in) {
        layer.cross.q->multiply(in, n, s.wide.data(), s.rounded);
        for (int i = 0; i < n; ++i) {
          const auto memory = [&](int j) { return static_cast<Kept*>(memory_[l]) + static_cast<size_t>(j) * P; };
          const int b = owners_[from + i], length = starts_[b + 1] - starts_[b];
          s.find(length, [&](int j) { return memory(starts_[b] + j); });
          if (const int next = i + 1 < n ? owners_[from + i + 1] : b; next != b)
            ask_for(memory(starts_[next]), memory(starts_[next + 1]));
          attend<Kept, 1>(model_, s.wide.data() + static_cast<size_t>(i) * K, 0, s.places.data(), length, s.scores.data(),
                 s.heads.data() + static_cast<size_t>(i) * layer.cross.out->columns());
        }
        layer.cross.out->multiply(s.heads.data(), n, s.y.data(), s.rounded);
      });
      residual(model_, layer.norms[2], x, n, s, [&](const float* in) { feed_forward(layer.feed_forward, in, n, s); });
    }
    finish(model_.decoder_norm, x, n);
  }

  void finish(const Norm& norm, float* x, int n) const {
    if (!model_.pre_norm) return;
    for (int i = 0; i < n; ++i) normalize(x + i * model_.d_model, norm.gain, norm.bias, norm.epsilon, model_.d_model);
  }

  const Model& model_;
  Arena arena_;
  std::vector<int64_t> tokens_;  // (S,) of all sentences
  std::vector<int> starts_;      // (B + 1,) of the sentences in tokens_
  int longest_ = 0;
  std::vector<void*> memory_;                 // by layer: (S, H·(K + V))
  std::vector<int32_t> owners_;               // (R,) sentence of each row
  std::vector<void*> past_;                   // by position: (rows there, layers, H·(K + V))
  std::vector<std::vector<int32_t>> places_;  // by position: (R,) the row there that each row has come from
  std::vector<Scratch> scratch_;              // by thread
};

}  // namespace nmtkit
