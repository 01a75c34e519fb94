// The ids of the words of a text, in bounded memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nmtkit {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the bytes of words are read as numbers");

// A word of a text; empty for the end of a line.
struct Token {
  std::string_view text;
  uint64_t key = 0;  // the bytes and the size of a short word, else a hash; the two kinds are never equal

  // Whether words with the same key are equal.
  bool is_short() const { return text.size() < sizeof(key); }
};

// Read the word up to the next space, line feed or `end`.
inline Token read_token(const char* begin, const char* end) {
  constexpr uint64_t kBytes = 0x0101010101010101, kHashFactor = 0xff51afd7ed558ccd, kLongWord = 0xff;
  // Marks each byte that is zero by its highest bit. Bytes above a zero may be marked by mistake.
  const auto find_zeros = [](uint64_t bytes) { return (bytes - kBytes) & ~bytes & (kBytes << 7); };
  uint64_t key = 0;
  for (const char* at = begin;; at += sizeof(key)) {
    uint64_t bytes = kBytes * '\n';  // behind the end of the text
    std::memcpy(&bytes, at, std::min(sizeof(bytes), static_cast<size_t>(end - at)));
    const uint64_t stops = find_zeros(bytes ^ kBytes * ' ') | find_zeros(bytes ^ kBytes * '\n');
    if (!stops) {
      key = (key ^ bytes) * kHashFactor;
      key ^= key >> 32;
      continue;
    }
    const uint64_t first_stop = (stops & -stops) >> 7;  // 1 << 8n after n bytes of the word
    const size_t size = static_cast<size_t>(at - begin) + static_cast<size_t>(__builtin_ctzll(stops)) / 8;
    key ^= bytes & (first_stop - 1);
    if (at > begin) key *= kHashFactor;
    return {{begin, size}, key | (at > begin ? kLongWord : size) << 56};
  }
}

// Caches the encoded ids of words. For each text, call find_new, then add the ids of the new words, then write.
// A full generation of words becomes the older one; words that are found there move to the recent one.
class WordCache {
 public:
  // Each of two generations of words has about max_bytes.
  WordCache(std::string line_end, size_t max_bytes)
      : line_end_(std::move(line_end)), max_bytes_(max_bytes), recent_(line_end_), older_(line_end_) {}

  // Look up the words of a text, which spaces separate; a line feed ends each line. Returns the words to encode, which
  // live as long as the text. Throws std::length_error.
  std::vector<std::string_view> find_new(std::string_view text) {
    start_text();
    std::vector<std::string_view> missing;
    const char *at = text.data(), *end = at + text.size();
    while (at < end) {
      // Several words at a time: their slots are fetched from memory while the next ones are read.
      std::array<Token, kBatch + 1> batch;  // a word and the end of its line come together
      size_t count = 0;
      while (at < end && count < kBatch) {
        const Token token = read_token(at, end);
        at += token.text.size();
        if (!token.text.empty()) {
          recent_.prefetch(token);
          batch[count++] = token;
        }
        if (at < end && *at++ == '\n') batch[count++] = {};
      }
      for (size_t i = 0; i < count; ++i)
        units_.push_back(batch[i].text.empty() ? kLineEnd : find(batch[i], missing));
    }
    return missing;
  }

  size_t new_words() const { return new_.size(); }
  size_t id_bytes() const { return line_end_.size(); }

  // Set the ids of the new words, given one after the other with their number for each word. Throws std::length_error.
  void add(const char* ids, const int32_t* lengths) {
    for (size_t i = 0; i < new_.size(); ++i) {
      const size_t bytes = static_cast<size_t>(lengths[i]) * id_bytes();
      recent_.set_ids(new_[i], {ids, bytes});
      ids += bytes;
    }
    new_.clear();
  }

  size_t encoded_bytes() const {
    size_t bytes = 0;
    for (const uint32_t word : units_) bytes += recent_.ids(word).size();
    return bytes;
  }

  // Write the ids of the text.
  void write(char* to) const {
    for (const uint32_t word : units_) {
      const std::string_view ids = recent_.ids(word);
      std::memcpy(to, ids.data(), ids.size());
      to += ids.size();
    }
  }

 private:
  static constexpr size_t kBatch = 32;
  static constexpr uint32_t kLineEnd = 0;  // its number among the words of each generation

  // Words by number, and a hash table of them with linear probing. The number of slots is a power of two; at most half
  // of them are used.
  class Generation {
   public:
    explicit Generation(std::string_view line_end) : words_(1), slots_(1024) { set_ids(kLineEnd, line_end); }

    void prefetch(const Token& token) const { __builtin_prefetch(&slots_[first_slot(token.key)]); }

    // The number of a word; kLineEnd if there is none.
    uint32_t find(const Token& token) const {
      for (size_t i = first_slot(token.key);; i = next_slot(i)) {
        const Slot& slot = slots_[i];
        if (slot.word == kLineEnd) return kLineEnd;
        if (slot.key == token.key && (token.is_short() || text(slot.word) == token.text)) return slot.word;
      }
    }

    // Add a word that has no ids yet, and return its number. Throws std::length_error.
    uint32_t add(const Token& token) {
      const auto number = static_cast<uint32_t>(words_.size());
      words_.push_back({append(texts_, token.text), static_cast<uint32_t>(token.text.size()), 0, 0});
      if (2 * words_.size() > slots_.size()) {
        std::vector<Slot> old(2 * slots_.size());
        old.swap(slots_);
        for (const Slot& slot : old)
          if (slot.word != kLineEnd) insert(slot);
      }
      insert({token.key, number});
      return number;
    }

    // Throws std::length_error.
    void set_ids(uint32_t word, std::string_view ids) {
      words_[word].ids = append(ids_, ids);
      words_[word].ids_bytes = static_cast<uint32_t>(ids.size());
    }

    std::string_view ids(uint32_t word) const { return {ids_.data() + words_[word].ids, words_[word].ids_bytes}; }

    size_t bytes() const {
      return texts_.size() + ids_.size() + words_.size() * sizeof(Word) + slots_.size() * sizeof(Slot);
    }

   private:
    struct Word {
      uint32_t text, text_bytes, ids, ids_bytes;  // positions and sizes in texts_ and ids_
    };

    struct Slot {
      uint64_t key = 0;
      uint32_t word = kLineEnd;  // an empty slot
    };

    std::string_view text(uint32_t word) const { return {texts_.data() + words_[word].text, words_[word].text_bytes}; }

    size_t first_slot(uint64_t key) const { return (key * 0x9e3779b97f4a7c15 >> 32) & (slots_.size() - 1); }
    size_t next_slot(size_t slot) const { return (slot + 1) & (slots_.size() - 1); }

    void insert(const Slot& slot) {
      size_t i = first_slot(slot.key);
      while (slots_[i].word != kLineEnd) i = next_slot(i);
      slots_[i] = slot;
    }

    // Append bytes, and return their position.
    static uint32_t append(std::string& to, std::string_view bytes) {
      if (to.size() + bytes.size() > UINT32_MAX) throw std::length_error("4 GiB of words");
      to += bytes;
      return static_cast<uint32_t>(to.size() - bytes.size());
    }

    std::string texts_, ids_;
    std::vector<Word> words_;
    std::vector<Slot> slots_;
  };

  void start_text() {
    if (!new_.empty()) recent_ = older_ = Generation(line_end_);  // they were not encoded because of an error
    if (recent_.bytes() > max_bytes_) {
      older_ = std::move(recent_);
      recent_ = Generation(line_end_);
    }
    new_.clear();
    units_.clear();
  }

  uint32_t find(const Token& token, std::vector<std::string_view>& missing) {
    if (const uint32_t found = recent_.find(token); found != kLineEnd) return found;
    const uint32_t old = older_.find(token), word = recent_.add(token);
    if (old != kLineEnd) {
      recent_.set_ids(word, older_.ids(old));
    } else {
      missing.push_back(token.text);
      new_.push_back(word);
    }
    return word;
  }

  std::string line_end_;  // its ids
  size_t max_bytes_;
  Generation recent_, older_;
  std::vector<uint32_t> units_;  // of the current text: words of recent_, and kLineEnd
  std::vector<uint32_t> new_;    // words that have no ids yet
};

}  // namespace nmtkit
