// Protection of a run against strangers: random texts, and signatures that only a holder of the secret can make.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace colossal::comm {

/// Returns 32 hex digits: 128 bits of the kernel's random numbers.
std::string random_text();

/// The 128-bit key of SipHash-2-4. Without the key, hashes cannot be predicted, and hashes do not reveal the key.
struct HashKey {
  uint64_t low = 0, high = 0;
};
uint64_t keyed_hash(const HashKey& key, std::string_view text);

/// Signs the values of a store. Pure and thread safe. It does not encrypt: values remain readable.
class Seal {
 public:
  /// `secret` is any text; a text from random_text() cannot be guessed.
  explicit Seal(std::string_view secret);
  /// Returns `value` prefixed with a tag that is valid only for this value under `name`.
  std::string close(const std::string& name, const std::string& value) const;
  /// Returns the value that was closed under that name with the same secret, or nothing if the tag does not match.
  std::optional<std::string> open(const std::string& name, const std::string& sealed) const;

 private:
  std::string tag(const std::string& name, std::string_view value) const;
  HashKey key_;
};

}  // namespace colossal::comm
