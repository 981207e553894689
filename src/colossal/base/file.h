// Whole files, read with a bound and written so that a reader sees the old content or the new, never a part.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace colossal {

/// A file written aside (`<path>.partial-<16 random hex digits>`) that takes its name only in commit(): flushed to the
/// disk, renamed, folder flushed. Left without commit (an exception, a full disk) the aside file is removed and the old
/// file is untouched. It is locked while it is written; what a killed process left of the same path, which nobody
/// locks, is removed by the next that writes there.
/// Errors ("file"): cannot create, write, flush or rename, each with path and reason; a full disk says so.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* bytes, size_t count);
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
  int64_t written() const { return written_; }
  void commit();

 private:
  [[noreturn]] void fail(const char* verb) const;
  bool open_aside();
  std::string path_;
  std::string aside_;
  int descriptor_ = -1;
  int64_t written_ = 0;
};

/// AtomicFile in one call.
void write_file(const std::string& path, std::string_view bytes);

/// The whole file. Errors ("file"): missing, unreadable, a folder, or larger than `max_bytes`.
std::string read_file(const std::string& path, int64_t max_bytes);

/// Flushes a folder's entries (created, renamed, removed names) to the disk.
void sync_folder(const std::string& path);

/// Creates a folder and its parents. Errors ("file"): not permitted, or a file of that name is in the way.
void create_folder(const std::string& path);

/// Whether `path` is a folder, or becomes one within `limit`. A network file system may cache for seconds that a folder
/// was absent when another host has just made it.
bool folder_appears(const std::string& path, std::chrono::milliseconds limit);

}  // namespace colossal
