// A bounded cache of the ids of short words, because most words of a text are the same few.
//
//   CachePool caches;
//   const CachePool::Lease cache = caches.lease();  // one for the caller alone
//   if (!cache->find(word, ids)) cache->keep(word, encoded);
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace colossal::text {

/// A hash table of up to 2^15 words of at most 24 bytes and 7 ids, 64 bytes each. Each hash has one slot; a new word
/// replaces the old one.
class WordCache {
 public:
  WordCache() : slots_(kSlots) {}
  /// Appends the ids of the word and returns true if the word is in the cache.
  bool find(std::string_view word, std::vector<int64_t>& ids) const {
    if (word.size() > kBytes || word.empty()) return false;
    const Key key = key_of(word);
    const Slot& slot = slots_[place_of(key)];
    if (slot.key != key) return false;
    for (size_t i = 0; i < slot.count; ++i) ids.push_back(slot.ids[i]);
    return true;
  }
  /// Stores the ids of a word. Does nothing for an empty word and beyond the limits of bytes and ids.
  void keep(std::string_view word, const int64_t* ids, size_t count) {
    if (word.size() > kBytes || word.empty() || count > kIds) return;
    const Key key = key_of(word);
    Slot& slot = slots_[place_of(key)];
    slot.key = key;
    slot.count = static_cast<uint32_t>(count);
    for (size_t i = 0; i < count; ++i) slot.ids[i] = static_cast<int32_t>(ids[i]);
  }

 private:
  static constexpr size_t kSlots = 1 << 15, kBytes = 24, kIds = 7;
  struct Key {  // a word's bytes in three integers, and its length; length 0 = an empty slot
    uint64_t parts[3] = {};
    uint64_t length = 0;
    bool operator==(const Key&) const = default;
  };
  struct Slot {
    Key key;
    uint32_t count = 0;
    int32_t ids[kIds];
  };
  static_assert(sizeof(Slot) == 64);
  /// Returns up to eight bytes as an integer, without a loop over them.
  static uint64_t number_of(const char* bytes, size_t count) {
    const auto load = [](const char* from, auto number) {
      std::memcpy(&number, from, sizeof number);
      return number;
    };
    const auto byte = [&](size_t i) { return static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])); };
    if (count >= 8) return load(bytes, uint64_t{});
    if (count >= 4) return load(bytes, uint32_t{}) | static_cast<uint64_t>(load(bytes + count - 4, uint32_t{})) << 32;
    return count == 0 ? 0 : byte(0) | byte(count / 2) << 8 | byte(count - 1) << 16;
  }
  static Key key_of(std::string_view word) {
    Key key;
    key.length = word.size();
    for (size_t i = 0, at = 0; at < word.size(); ++i, at += 8)
      key.parts[i] = number_of(word.data() + at, word.size() - at);
    return key;
  }
  static size_t place_of(const Key& key) {
    uint64_t hash = key.length;
    for (const uint64_t part : key.parts) {
      hash = (hash ^ part) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    return hash >> 7 & (kSlots - 1);
  }
  std::vector<Slot> slots_;
};

/// A pool of caches, each of which one caller borrows and returns. It holds as many caches as there were callers at
/// once.
/// Thread safety: any.
class CachePool {
 public:
  class Lease {
   public:
    Lease(CachePool& pool, std::unique_ptr<WordCache> cache) : pool_(pool), cache_(std::move(cache)) {}
    ~Lease() { pool_.take_back(std::move(cache_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    WordCache& operator*() const { return *cache_; }
    WordCache* operator->() const { return cache_.get(); }

   private:
    CachePool& pool_;
    std::unique_ptr<WordCache> cache_;
  };
  Lease lease() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) {
      idle_.reserve(made_ + 1);  // take_back() must never allocate
      auto made = std::make_unique<WordCache>();
      ++made_;
      return {*this, std::move(made)};
    }
    auto cache = std::move(idle_.back());
    idle_.pop_back();
    return {*this, std::move(cache)};
  }

 private:
  void take_back(std::unique_ptr<WordCache> cache) noexcept {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(cache));
  }
  std::mutex mutex_;
  std::vector<std::unique_ptr<WordCache>> idle_;
  size_t made_ = 0;
};

}  // namespace colossal::text
