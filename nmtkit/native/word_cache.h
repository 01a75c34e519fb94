// The ids of the words of a text, in bounded memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nmtkit {

// Caches the encoded ids of words. For each text, call find_new, then add the ids of the new words, then write.
// A full generation of words becomes the older one; words that are found there move to the recent one.
class WordCache {
 public:
  WordCache(std::string line_end, size_t max_words) : line_end_(std::move(line_end)), max_words_(max_words) {}

  // Look up the words of a text, which spaces separate; a line feed ends each line. Returns the words to encode, which
  // live as long as the text.
  std::vector<std::string_view> find_new(std::string_view text) {
    start_text();
    std::vector<std::string_view> missing;
    while (!text.empty()) {
      const size_t size = std::min(text.find_first_of(" \n"), text.size());
      const std::string_view word = text.substr(0, size);
      if (!word.empty()) units_.push_back(find(word, missing));
      if (size < text.size() && text[size] == '\n') units_.push_back(nullptr);
      text.remove_prefix(std::min(size + 1, text.size()));
    }
    return missing;
  }

  size_t new_words() const { return new_.size(); }
  size_t id_bytes() const { return line_end_.size(); }

  // Set the ids of the new words, given one after the other with their number for each word.
  void add(const char* ids, const int32_t* lengths) {
    for (size_t i = 0; i < new_.size(); ++i) {
      new_[i]->ids.assign(ids, lengths[i] * id_bytes());
      ids += lengths[i] * id_bytes();
    }
    new_.clear();
  }

  size_t encoded_bytes() const {
    size_t bytes = 0;
    for (const Word* word : units_) bytes += ids_of(word).size();
    return bytes;
  }

  // Write the ids of the text.
  void write(char* to) const {
    for (const Word* word : units_) {
      const std::string& ids = ids_of(word);
      std::memcpy(to, ids.data(), ids.size());
      to += ids.size();
    }
  }

 private:
  static constexpr size_t kMaxWordBytes = 64;  // a longer word is hardly ever seen again

  struct Word {
    std::string text, ids;
  };

  struct Generation {
    std::deque<Word> words;  // never move
    std::unordered_map<std::string_view, Word*> index;

    Word* add(std::string_view text) {
      Word* word = &words.emplace_back(Word{std::string(text), {}});
      index.emplace(word->text, word);
      return word;
    }
  };

  void start_text() {
    if (!new_.empty()) recent_ = older_ = {};  // they were not encoded because of an error
    if (recent_.words.size() > max_words_) {
      older_ = std::move(recent_);
      recent_ = {};
    }
    new_.clear();
    units_.clear();
    long_words_.clear();
  }

  Word* find(std::string_view text, std::vector<std::string_view>& missing) {
    if (text.size() <= kMaxWordBytes) {
      if (const auto found = recent_.index.find(text); found != recent_.index.end()) return found->second;
      if (const auto found = older_.index.find(text); found != older_.index.end()) {
        Word* word = recent_.add(text);
        word->ids = found->second->ids;
        return word;
      }
    }
    missing.push_back(text);
    Word* word = text.size() <= kMaxWordBytes ? recent_.add(text) : &long_words_.emplace_back();
    new_.push_back(word);
    return word;
  }

  const std::string& ids_of(const Word* word) const { return word ? word->ids : line_end_; }

  std::string line_end_;  // its ids
  size_t max_words_;
  Generation recent_, older_;
  std::deque<Word> long_words_;     // of the current text
  std::vector<const Word*> units_;  // of the current text; nullptr at the end of a line
  std::vector<Word*> new_;          // words that have no ids yet
};

}  // namespace nmtkit
