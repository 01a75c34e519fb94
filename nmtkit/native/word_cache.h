// The ids of the words of a text, in bounded memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
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
      const size_t size = static_cast<size_t>(
          std::find_if(text.begin(), text.end(), [](char c) { return c == ' ' || c == '\n'; }) - text.begin());
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

  // A hash table with linear probing. The number of slots is a power of two; at most half of them are used.
  struct Generation {
    using Slots = std::vector<std::pair<size_t, Word*>>;  // with the hash of each word

    std::deque<Word> words;  // never move
    Slots slots = Slots(1024);

    Word* find(std::string_view text, size_t hash) const {
      for (size_t i = hash;; ++i) {
        const auto& [own, word] = slots[i & (slots.size() - 1)];
        if (!word) return nullptr;
        if (own == hash && word->text == text) return word;
      }
    }

    Word* add(std::string_view text, size_t hash) {
      Word* word = &words.emplace_back(Word{std::string(text), {}});
      if (2 * words.size() > slots.size()) {
        Slots old(2 * slots.size());
        old.swap(slots);
        for (const auto& [own, each] : old)
          if (each) insert(own, each);
      }
      insert(hash, word);
      return word;
    }

   private:
    void insert(size_t hash, Word* word) {
      size_t i = hash;
      while (slots[i & (slots.size() - 1)].second) ++i;
      slots[i & (slots.size() - 1)] = {hash, word};
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
    const bool is_cached = text.size() <= kMaxWordBytes;
    const size_t hash = is_cached ? std::hash<std::string_view>{}(text) : 0;
    if (is_cached) {
      if (Word* found = recent_.find(text, hash)) return found;
      if (const Word* found = older_.find(text, hash)) {
        Word* word = recent_.add(text, hash);
        word->ids = found->ids;
        return word;
      }
    }
    missing.push_back(text);
    Word* word = is_cached ? recent_.add(text, hash) : &long_words_.emplace_back();
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
