// A file that is read in pieces, and may change meanwhile.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

namespace colossal {

/// A regular file of which any bytes are read by copying: one that somebody shortens is an error with its name, where a
/// mapping would end the process. A file that is replaced (renamed over) or removed goes on to be read as it was.
/// Thread safety: const members may be called from several threads.
class InputFile {
 public:
  /// Errors ("file"): missing, unreadable, not a regular file, too many files open.
  static std::shared_ptr<const InputFile> open(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  ///< when it was opened
  /// Copies bytes [begin, begin + count), which lie inside the size, to `out`.
  /// Errors ("file"): the file became shorter, or cannot be read.
  void read(int64_t begin, int64_t count, void* out) const;
  /// Its first `count` bytes, or all if it has fewer. Errors: those of read().
  std::string start(int64_t count) const;
  /// All its bytes. Errors: those of read().
  std::string content() const;

 private:
  InputFile(std::string path, int descriptor, int64_t size)
      : path_(std::move(path)), descriptor_(descriptor), size_(size) {}
  [[noreturn]] void fail_as_shortened() const;
  std::string path_;
  int descriptor_;
  int64_t size_;
};

}  // namespace colossal
