// The tokens of one document, stored in a file on disk or in memory.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "colossal/base/input_file.h"

namespace colossal::data {

/// A sequence of little-endian tokens of `width` bytes each. It is cheap to copy, because copies share the bytes.
/// Thread safety: several threads may call const members.
class StoredTokens {
 public:
  static constexpr int64_t kKept = 1 << 20;  ///< bytes of the largest file that is kept in memory

  /// Opens a file of tokens of `width` bytes (1, 2 or 4). A file of at most kKept bytes is read now, so later changes
  /// of the file have no effect. A larger file is read by read().
  /// Errors: the same as InputFile; Error("data", ...) if the file does not hold whole tokens or has more than 2^56
  /// bytes.
  StoredTokens(const std::string& path, int width);
  /// Holds tokens in memory. `name` is their name in messages.
  StoredTokens(std::string name, std::string bytes, int width);
  /// Holds the bytes of a text in memory, one token each. The description is that of a file with these bytes.
  static StoredTokens of_text(std::string name, std::string text);

  int64_t count() const { return count_; }
  const std::string& name() const { return name_; }
  /// Copies tokens [begin, begin + count) to `out`. The range must be within count(). Errors: the same as
  /// InputFile::read().
  void read(int64_t begin, int64_t count, int64_t* out) const;
  /// Returns the size and a checksum as text for people. Another content has another description. For a file on disk
  /// the checksum covers 64 evenly spread pieces.
  const std::string& description() const { return description_; }

 private:
  /// `in_pieces`: the checksum covers pieces only.
  void describe(bool in_pieces);
  std::string name_, description_;
  int width_;
  int64_t count_ = 0;
  std::shared_ptr<const std::string> memory_;
  std::shared_ptr<const InputFile> file_;  // null if memory_ holds the tokens
};

}  // namespace colossal::data
