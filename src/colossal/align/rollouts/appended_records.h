// Files of records that are appended whole, and what a kill or a full disk leaves of them.
//
//   AppendedRecords file("runs/a/rollouts/step-000012/start-0001-rank-00000.records");
//   file.append("any bytes");                                   // a kill during this loses this record alone
//   read_appended(file.path(), [&](std::string_view record, int64_t byte) { std::puts(std::string(record).c_str()); });
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace colossal::align {

/// A new file to which one process appends records. The file has a line with its version, and of each record a header
/// of 16 bytes (length, its complement, XXH3-64) and its bytes.
///
/// A record that append() has passed to the system survives a kill of the process. The file is never flushed to the
/// disk, so a power failure may lose its end.
class AppendedRecords {
 public:
  /// Creates the file. Errors ("rollouts"): it exists, or cannot be created.
  explicit AppendedRecords(std::string path);
  /// Creates the file; returns null if it exists. Errors ("rollouts"): it cannot be created.
  static std::unique_ptr<AppendedRecords> unless_exists(std::string path);
  ~AppendedRecords();
  AppendedRecords(const AppendedRecords&) = delete;
  AppendedRecords& operator=(const AppendedRecords&) = delete;

  /// Appends a record of 1 byte to 4 GiB. Errors ("rollouts"): it cannot be written (a full disk). The file then has
  /// the records before it, and further ones may be appended.
  void append(std::string_view record);
  const std::string& path() const { return path_; }

 private:
  AppendedRecords(std::string path, int descriptor);

  std::string path_;
  int descriptor_;
  int64_t end_ = 0;  // place after the last whole record
};

/// Calls `take` with each record of a file and the place of its first byte, in their order. A record at the end that is
/// cut off or damaged, which a kill or a power failure leaves, is ignored. Memory: the whole file.
/// Errors ("file"): the file cannot be read. Errors ("rollouts"), with file and byte: a damaged record before an intact
/// one; a file of another kind or version.
void read_appended(const std::string& path, const std::function<void(std::string_view record, int64_t byte)>& take);

}  // namespace colossal::align
