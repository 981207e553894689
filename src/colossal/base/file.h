// Reads whole files up to a bound, and writes them so that a reader sees the old content or the new, never a part.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace colossal {

/// A file that is written under a temporary name (`<path>.partial-<16 random hex digits>`) and gets its own name in
/// commit(). commit() flushes the file to the disk, renames it and flushes the folder. Without commit() (an exception,
/// a full disk) the destructor removes the temporary file and the old file is unchanged.
///
/// The temporary file is locked while it is written. The constructor removes temporary files of the same path that have
/// no lock, because killed processes left them.
/// Errors ("file"): it cannot create, write, flush or rename the file. Each message has the path and the reason; that
///                  of a full disk has a remedy.
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

/// Writes `bytes` as an AtomicFile and commits it.
void write_file(const std::string& path, std::string_view bytes);

/// Copies the file `from` as an AtomicFile, piece by piece. Errors ("file"): `from` cannot be read; as AtomicFile.
void copy_file(const std::string& from, const std::string& to);

/// Returns the content of a file. Errors ("file"): it is missing, unreadable, a folder, or larger than `max_bytes`.
std::string read_file(const std::string& path, int64_t max_bytes);

/// Returns the size, the times of the last changes of content and of the entry, and the number of a file in its file
/// system, as text: another one after its content was changed, although a program may set back the time of content.
/// Empty = the file cannot be looked up, or its content was changed in the last two seconds, so that a further change
/// might have the same times.
std::string file_stamp(const std::string& path);

/// Flushes the entries of a folder (created, renamed and removed names) to the disk. Errors ("file"): it cannot be
/// opened or flushed.
void sync_folder(const std::string& path);

/// Creates a folder and its parents. Errors ("file"): it is not permitted, or a file of that name exists.
void create_folder(const std::string& path);

/// Returns true if `path` is a folder, or becomes one within `limit`. After another host has made a folder, a network
/// file system may report it as absent for seconds, from its cache.
bool folder_appears(const std::string& path, std::chrono::milliseconds limit);

}  // namespace colossal
