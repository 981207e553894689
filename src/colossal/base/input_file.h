// A file that is read in pieces and may change between the reads.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

namespace colossal {

/// An open regular file, whose bytes are read by copying. If another process shortens the file, read() throws an error
/// that names it; a mapping would end the process. After the file was replaced (renamed over) or removed, read() still
/// returns the old content.
/// Thread safety: const members may be called from several threads.
class InputFile {
 public:
  /// Opens a file. Errors ("file"): it is missing, unreadable or not a regular file; too many files are open.
  static std::shared_ptr<const InputFile> open(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  ///< bytes of the file when it was opened
  /// Copies bytes [begin, begin + count) to `out`.
  /// Errors ("file"): the range is not within size(); the file became shorter; it cannot be read.
  void read(int64_t begin, int64_t count, void* out) const;
  /// Returns the first `count` bytes, or all bytes if the file has fewer. Errors: the same as read().
  std::string start(int64_t count) const;
  /// Returns all bytes. Errors: the same as read().
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
