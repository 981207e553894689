// The tokens of one document as they are stored: in a file that stays on disk, or in memory.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "colossal/base/input_file.h"

namespace colossal::data {

/// Little-endian tokens of `width` bytes each. Cheap to copy: copies share the bytes.
/// Thread safety: const members may be called from several threads.
class StoredTokens {
 public:
  static constexpr int64_t kKept = 1 << 20;  ///< bytes: a file of at most as many is kept in memory

  /// The content of a file, a token each `width` bytes (1, 2 or 4). What is small is read now, so that nobody can
  /// change it any more; the rest when it is asked for. Errors: InputFile's; Error("data", ...) when it does not hold
  /// whole tokens.
  StoredTokens(const std::string& path, int width);
  /// Tokens in memory. `name` is for messages.
  StoredTokens(std::string name, std::string bytes, int width);

  int64_t count() const { return count_; }
  const std::string& name() const { return name_; }
  /// Copies tokens [begin, begin + count), which lie inside, to `out`. Errors: InputFile::read()'s.
  void read(int64_t begin, int64_t count, int64_t* out) const;
  /// Size and checksum, for a person to read: another for another content. Of a file on disk the sum is of 64 pieces,
  /// spread evenly.
  const std::string& description() const { return description_; }

 private:
  void describe();
  std::string name_, description_;
  int width_;
  int64_t count_ = 0;
  std::shared_ptr<const std::string> memory_;
  std::shared_ptr<const InputFile> file_;  // where there is no memory
};

}  // namespace colossal::data
