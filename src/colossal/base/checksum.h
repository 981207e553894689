// Checksums of bytes and files against accidents (not against forgery): XXH3-128 in hex, XXH3-64 as a number.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace colossal {

/// XXH3-128 of a stream of bytes. Cost: memory speed (above 10 GB/s a core), no allocation in update().
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;
  void update(const void* bytes, size_t count);
  /// 32 hex digits of everything so far, most significant first; more may follow.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// XXH3-128 of the bytes, 32 hex digits.
std::string checksum(const void* bytes, size_t count);
inline std::string checksum(std::string_view bytes) { return checksum(bytes.data(), bytes.size()); }
/// XXH3-64 of the bytes. Cost: memory speed, no allocation.
uint64_t checksum_number(const void* bytes, size_t count);
/// XXH3-128 of a file read in pieces of 1 MiB. Errors ("file"): it cannot be read.
std::string file_checksum(const std::string& path);

}  // namespace colossal
