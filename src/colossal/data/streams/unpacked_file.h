// Files that may be compressed, with gzip (.gz) or Zstandard (.zst).
//
//   const auto file = data::UnpackedFile::open("texts.jsonl.zst");
//   while (const int64_t got = file->read(buffer.data(), buffer.size())) use(buffer.data(), got);
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace colossal::data {

/// Returns true if the name of a file ends in .gz or .zst, in upper or lower case.
bool is_packed(std::string_view path);

/// A reader of the content of a file from its start, unpacked if is_packed().
///
/// A .gz file has one or more members (RFC 1952), and zero bytes may follow. A .zst file has one or more frames (RFC
/// 8878), which may be skippable, with windows of at most 128 MiB. read() returns all content before a damaged place
/// before it reports the error, for any sizes of the calls.
/// Cost: a few hundred KiB of memory, and the window of a .zst file; skip() in a packed file unpacks the bytes.
/// Thread safety: one thread calls the members.
class UnpackedFile {
 public:
  /// Errors ("file"): the same as InputFile.
  static std::unique_ptr<UnpackedFile> open(const std::string& path);
  virtual ~UnpackedFile() = default;
  /// Reads up to `count` (at least 1) bytes into `out`. Returns the number of bytes; 0 only at the end.
  /// Errors ("data"), with the file's name: the file is not of the kind that its name ends in, is damaged or cut short,
  /// or other bytes follow.
  virtual int64_t read(char* out, int64_t count) = 0;
  /// Skips `count` bytes, or all that are left. Returns the number of bytes skipped.
  virtual int64_t skip(int64_t count);
};

/// Returns the unpacked content of a file. Cost: all of it in memory.
/// Errors: the same as UnpackedFile; Error("data", ...) if the content has more than `max_bytes`.
std::string read_unpacked(const std::string& path, int64_t max_bytes);

}  // namespace colossal::data
