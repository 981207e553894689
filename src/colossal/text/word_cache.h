// The ids of short words that were met before, within a bound: most words of a text are the same few.
//
//   CachePool caches;
//   const CachePool::Lease cache = caches.lease();  // one for the caller alone
//   if (!cache->find(word, ids)) cache->keep(word, encoded);
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace colossal::text {

/// 2^15 words of at most 27 bytes and 8 ids, 64 bytes each: a place for each hash, whose last word stays.
class WordCache {
 public:
  WordCache() : slots_(kSlots) {}
  /// Appends the ids of the word if they are there.
  bool find(std::string_view word, std::vector<int64_t>& ids) const {
    if (word.size() > kBytes || word.empty()) return false;
    const Slot& slot = slots_[place_of(word)];
    if (slot.length != word.size() || std::memcmp(slot.word, word.data(), word.size()) != 0) return false;
    ids.insert(ids.end(), slot.ids, slot.ids + slot.count);
    return true;
  }
  void keep(std::string_view word, const int64_t* ids, size_t count) {
    if (word.size() > kBytes || word.empty() || count > kIds) return;
    Slot& slot = slots_[place_of(word)];
    std::memcpy(slot.word, word.data(), word.size());
    slot.length = static_cast<uint8_t>(word.size());
    slot.count = static_cast<uint8_t>(count);
    for (size_t i = 0; i < count; ++i) slot.ids[i] = static_cast<int32_t>(ids[i]);
  }

 private:
  static constexpr size_t kSlots = 1 << 15, kBytes = 27, kIds = 8;
  struct Slot {
    int32_t ids[kIds];
    uint8_t length = 0, count = 0;
    char word[kBytes];
  };
  /// Eight bytes at a time, each mixed by a multiplication.
  static size_t place_of(std::string_view word) {
    uint64_t hash = word.size();
    for (size_t at = 0; at < word.size(); at += 8) {
      uint64_t part = 0;
      std::memcpy(&part, word.data() + at, std::min<size_t>(8, word.size() - at));
      hash = (hash ^ part) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    return hash >> 7 & (kSlots - 1);
  }
  std::vector<Slot> slots_;
};

/// Caches that are lent to one caller each and come back: as many as there are callers at once.
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
      idle_.reserve(made_ + 1);  // so that none that comes back needs memory
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
