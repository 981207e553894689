// A file descriptor that closes itself.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace colossal {

class Descriptor {
 public:
  /// Takes ownership of `value`; a negative value, which failed calls return, means that there is no descriptor.
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

/// Returns another descriptor of the same open file, above 2 and closed in processes that are started; none if there
/// can be none (errno).
inline Descriptor duplicate_of(const Descriptor& one) {
  return Descriptor(fcntl(one.value(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
}

}  // namespace colossal
