// A file seen as memory.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace colossal {

/// A read-only mapping of a whole file, shared by all who hold it. Pages are read when touched. An empty file maps to
/// an empty view. Errors ("file"): missing, unreadable, not a regular file. A file that another process shortens
/// meanwhile ends the process (SIGBUS): for weights, which programs replace; what people edit is read through
/// InputFile.
class MappedFile {
 public:
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return bytes_; }
  /// The pages of `part`, of bytes(), are no memory of this process any more. Whoever touches them reads them anew.
  void leave(std::string_view part) const;
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, std::string_view bytes) : path_(std::move(path)), bytes_(bytes) {}
  std::string path_;
  std::string_view bytes_;
};

}  // namespace colossal
