// A file that is mapped into memory.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace colossal {

/// A read-only mapping of a whole file, shared by all holders of the pointer. A page is read from the disk when it is
/// first accessed. An empty file maps to an empty view.
///
/// If another process shortens the file while it is mapped, an access ends this process (SIGBUS). The class is
/// therefore for weights, which programs replace as whole files. Use InputFile for files that people edit.
class MappedFile {
 public:
  /// Maps a file. Errors ("file"): it is missing, unreadable or not a regular file.
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return bytes_; }  ///< valid while this object lives
  /// Drops the pages of `part`, a range of bytes(), from the memory of this process. The next access reads them again.
  void leave(std::string_view part) const;
  /// Returns true if `part`, a range of bytes(), is in memory, so that reading it needs no disk. Looks at one page of
  /// each 128 KiB. The system may drop pages later. Also true for a file that this user may not write, unless it is
  /// this user's own: the system then hides what is in memory.
  bool is_in_memory(std::string_view part) const;
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, std::string_view bytes) : path_(std::move(path)), bytes_(bytes) {}
  std::string path_;
  std::string_view bytes_;
};

}  // namespace colossal
