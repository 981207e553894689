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

/// Whether the name of a file says that it is packed: .gz or .zst, in either case.
bool is_packed(std::string_view path);

/// The content of a file from its start, unpacked if is_packed().
///
/// A .gz is one or more members (RFC 1952), behind which zero bytes may follow; a .zst one or more frames, skippable
/// ones too (RFC 8878), with windows of at most 128 MiB. What lies before damage is handed out before the error,
/// whatever counts are read.
/// Cost: a few hundred KiB of memory, of a .zst its window too; skip() of a file that is packed unpacks it.
/// Thread safety: one thread calls the members.
class UnpackedFile {
 public:
  /// Errors ("file"): InputFile's.
  static std::unique_ptr<UnpackedFile> open(const std::string& path);
  virtual ~UnpackedFile() = default;
  /// Up to `count` (1 or more) bytes into `out`; how many, 0 at the end only.
  /// Errors ("data"): naming the file: not of the kind that its name says, damaged, cut short, followed by other bytes.
  virtual int64_t read(char* out, int64_t count) = 0;
  /// Passes over as many bytes, or all that are left; how many.
  virtual int64_t skip(int64_t count);
};

/// The content of a file. Cost: all of it in memory.
/// Errors: UnpackedFile's; Error("data", ...) when it has more than `max_bytes` unpacked.
std::string read_unpacked(const std::string& path, int64_t max_bytes);

}  // namespace colossal::data
