// Repeats a recorded beam search with the portable build of the compiled search and compares the results.
//
// Usage: portable_search FILE TOLERANCE THREADS. test_native_builds.py writes the file: arrays, each preceded by its
// length (int64): sizes, weights, sentences, then the inputs and expected outputs of each step.
#include <cstdio>
#include <cstdlib>

#include "../../nmtkit/native/decoder_state.h"

using namespace nmtkit;

namespace {

FILE* file;

template <class T>
std::vector<T> read() {
  int64_t count = 0;
  if (std::fread(&count, sizeof count, 1, file) != 1) std::abort();
  std::vector<T> values(count);
  if (std::fread(values.data(), sizeof(T), count, file) != static_cast<size_t>(count)) std::abort();
  return values;
}

std::vector<std::unique_ptr<Matrix>> matrices;
std::vector<std::vector<float>> vectors;  // which the model points to

const float* read_vector() {
  vectors.push_back(read<float>());
  return vectors.back().data();
}

const Matrix* read_matrix(NumberFormat format) {
  const auto shape = read<int64_t>();
  const auto weight = read<float>(), bias = read<float>();
  matrices.push_back(std::make_unique<Matrix>(
      WeightRows{weight.data(), static_cast<int>(shape[0]), static_cast<int>(shape[1])}, bias.empty() ? nullptr : bias.data(),
      format));
  return matrices.back().get();
}

const Matrix* read_embedding(int columns, NumberFormat format) {
  const auto weight = read<float>();
  matrices.push_back(std::make_unique<Matrix>(
      WeightRows{weight.data(), static_cast<int>(weight.size()) / columns, columns}, nullptr, format));
  return matrices.back().get();
}

Norm read_norm(const Model& model) {
  const float *gain = read_vector(), *bias = read_vector();
  return {gain, model.rms_norm ? nullptr : bias};
}

std::unique_ptr<Model> read_model() {
  const auto sizes = read<int64_t>();
  auto model = std::make_unique<Model>();
  model->d_model = static_cast<int>(sizes[0]);
  model->heads = static_cast<int>(sizes[1]);
  model->d_k = static_cast<int>(sizes[2]);
  model->d_v = static_cast<int>(sizes[3]);
  model->pre_norm = sizes[4] != 0;
  model->embedding_norm = false;
  model->norm_epsilon = 1e-5f;
  model->embedding_scale = std::sqrt(static_cast<float>(model->d_model));
  const NumberFormat format = sizes[5] ? NumberFormat::kInt8 : NumberFormat::kFp32;
  model->activation = static_cast<Activation>(sizes[8]);
  model->rms_norm = sizes[9] != 0;
  model->rotary = sizes[10] != 0;
  model->source_embedding = read_embedding(model->d_model, format);
  model->target_embedding = read_embedding(model->d_model, format);
  const float *q_gain = read_vector(), *k_gain = read_vector();
  if (!sizes[11]) q_gain = k_gain = nullptr;
  const auto norm = [&] { return read_norm(*model); };
  for (int64_t l = 0; l < sizes[6]; ++l) {
    const SelfAttention self_attention{read_matrix(format), read_matrix(format), q_gain, k_gain};
    const FeedForward feed_forward{read_matrix(format), read_matrix(format)};
    model->encoder.push_back({self_attention, feed_forward, {norm(), norm()}});
  }
  for (int64_t l = 0; l < sizes[7]; ++l) {
    const SelfAttention self_attention{read_matrix(format), read_matrix(format), q_gain, k_gain};
    const CrossAttention cross_attention{read_matrix(format), read_matrix(format), read_matrix(format), q_gain, k_gain};
    const FeedForward feed_forward{read_matrix(format), read_matrix(format)};
    model->decoder.push_back({self_attention, cross_attention, feed_forward, {norm(), norm(), norm()}});
  }
  model->output = read_matrix(format);
  if (model->pre_norm) {
    model->encoder_norm = norm();
    model->decoder_norm = norm();
  }
  return model;
}

}  // namespace

int main(int, char** arguments) {
  if (!(file = std::fopen(arguments[1], "rb"))) return 2;
  const double tolerance = std::atof(arguments[2]);
  const int threads = std::atoi(arguments[3]);
  const auto model = read_model();
  const auto source = read<int64_t>(), lengths = read<int64_t>();
  const auto positions = read<float>();
  const int sentences = static_cast<int>(lengths.size());
  DecoderState state(*model, source.data(), lengths.data(), sentences, static_cast<int>(source.size() / sentences),
                positions.data(), threads);
  double largest = 0.0;
  const int64_t steps = read<int64_t>()[0];
  for (int64_t step = 0; step < steps; ++step) {
    const auto origins = read<int64_t>(), tokens = read<int64_t>();
    const auto position = read<float>();
    const auto best = read<int64_t>();
    const auto log_probs = read<float>();
    const int rows = static_cast<int>(tokens.size());
    std::vector<int64_t> found(best.size());
    std::vector<float> scores(best.size());
    state.reorder(origins.data(), rows);
    state.best_step(tokens.data(), rows, position.data(), {}, static_cast<int>(best.size()) / rows, scores.data(),
                     found.data(), threads);
    for (size_t i = 0; i < best.size(); ++i) {
      largest = std::max(largest, static_cast<double>(std::abs(scores[i] - log_probs[i])));
      if (found[i] == best[i] && std::abs(scores[i] - log_probs[i]) <= tolerance) continue;
      std::printf("step %d, %d: token %d with %.7g instead of %d with %.7g\n", static_cast<int>(step),
                  static_cast<int>(i), static_cast<int>(found[i]), scores[i], static_cast<int>(best[i]), log_probs[i]);
      return 1;
    }
  }
  std::printf("%d steps, largest difference %.3g\n", static_cast<int>(steps), largest);
}
