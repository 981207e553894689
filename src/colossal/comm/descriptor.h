// A file descriptor of the system that closes itself.
#pragma once
#include <unistd.h>

#include <utility>

namespace colossal::comm {

class Descriptor {
 public:
  /// Takes `value` over; a negative one, as failed calls return, is nothing to close.
  explicit Descriptor(int value = -1) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor() {
    if (is_open()) close(value_);
  }

  bool is_open() const { return value_ >= 0; }
  int value() const { return value_; }

 private:
  int value_;
};

}  // namespace colossal::comm
