// What keeps strangers out of a run: texts that nobody guesses, and values that only who knows the secret can write.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace colossal::comm {

/// 32 hex digits, 128 bits of the kernel's random numbers.
std::string random_text();

/// SipHash-2-4 under a key of 128 bits. Who does not know the key can neither predict a hash nor learn the key from
/// hashes.
struct HashKey {
  uint64_t low = 0, high = 0;
};
uint64_t keyed_hash(const HashKey& key, std::string_view text);

/// Signs the values of a store. Pure and thread safe. It hides nothing: values can still be read.
class Seal {
 public:
  /// `secret` is any text; one from random_text() cannot be found by trying.
  explicit Seal(std::string_view secret);
  /// `value` behind a tag that holds for it under `name` alone.
  std::string close(const std::string& name, const std::string& value) const;
  /// What was closed under that name with the same secret; nothing when it was not.
  std::optional<std::string> open(const std::string& name, const std::string& sealed) const;

 private:
  std::string tag(const std::string& name, std::string_view value) const;
  HashKey key_;
};

}  // namespace colossal::comm
