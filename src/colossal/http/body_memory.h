// The memory that bodies of requests share, and the share of one connection.
#pragma once
#include <cstdint>
#include <set>
#include <utility>

namespace colossal::http {

/// Decides which connection may read more of its body. The bodies never have more than `max_bodies` bytes together. The
/// last `max_body` of them are kept for the reader that began first, so that some body always arrives completely.
/// Thread safety: one thread.
class BodyMemory {
 public:
  BodyMemory(int64_t max_bodies, int64_t max_body) : max_bodies_(max_bodies), max_body_(max_body) {}

  /// Begins a body. Returns a number that names the reader.
  int64_t begin() { return *readers_.insert(readers_.end(), next_++); }
  /// Takes bytes for a reader. Returns false if it has to wait until a body ends or is released.
  bool take(int64_t reader, int64_t bytes) {
    const int64_t limit = reader == *readers_.begin() ? max_bodies_ : max_bodies_ - max_body_;
    if (taken_ + bytes > limit) return false;
    taken_ += bytes;
    return true;
  }
  /// Ends a reader, whose body is complete or given up. Its bytes remain taken.
  void end(int64_t reader) { readers_.erase(reader); }
  void release(int64_t bytes) { taken_ -= bytes; }
  int64_t taken() const { return taken_; }

 private:
  const int64_t max_bodies_, max_body_;
  int64_t taken_ = 0, next_ = 0;
  std::set<int64_t> readers_;
};

/// The share of one connection in the memory: the bytes of the body that it reads, if it reads one.
class BodyShare {
 public:
  /// `memory` must outlive the object.
  explicit BodyShare(BodyMemory& memory) : memory_(memory) {}

  void begin() { reader_ = memory_.begin(); }
  /// Takes what is missing to `bytes`. Returns false if the connection has to wait; waits() is then true.
  bool grow_to(int64_t bytes) {
    if (bytes <= bytes_) return true;
    waits_ = !memory_.take(reader_, bytes - bytes_);
    if (!waits_) bytes_ = bytes;
    return !waits_;
  }
  bool waits() const { return waits_; }
  /// Ends a body that is complete, if there is one. Returns its bytes, which remain taken.
  int64_t complete() {
    if (reader_ >= 0) memory_.end(std::exchange(reader_, -1));
    return std::exchange(bytes_, 0);
  }
  /// Ends a body that no handler will get, and releases its bytes. Returns false if there is none.
  bool give_up() {
    waits_ = false;
    if (reader_ < 0) return false;
    memory_.release(complete());
    return true;
  }

 private:
  BodyMemory& memory_;
  int64_t reader_ = -1, bytes_ = 0;
  bool waits_ = false;
};

}  // namespace colossal::http
