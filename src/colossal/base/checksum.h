// Checksums of bytes and files: XXH3-128 in hex, XXH3-64 as a number. They detect accidents, not forgery.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace colossal {

/// The XXH3-128 of a stream of bytes. Cost: memory speed (above 10 GB/s per core), no allocation in update().
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;
  void update(const void* bytes, size_t count);
  /// Returns 32 hex digits for all bytes so far, most significant digit first. Further update() calls are allowed.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns the XXH3-128 of the bytes as 32 hex digits.
std::string checksum(const void* bytes, size_t count);
inline std::string checksum(std::string_view bytes) { return checksum(bytes.data(), bytes.size()); }
/// Returns the XXH3-64 of the bytes. Cost: memory speed, no allocation.
uint64_t checksum_number(const void* bytes, size_t count);
/// Returns the XXH3-128 of a file, read in pieces of 1 MiB, as 32 hex digits. Errors ("file"): it cannot be read.
std::string file_checksum(const std::string& path);

}  // namespace colossal
