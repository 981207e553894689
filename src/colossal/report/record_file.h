// A file of records that are appended whole. Its failures do not stop the run: a full disk only delays the writing.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace colossal::report {

/// A file to which records are appended. Records that cannot be written are kept in memory, up to kMaxPendingBytes,
/// and written with the next ones. Readers see complete records only, except for the last one after a kill.
class RecordFile {
 public:
  static constexpr size_t kMaxPendingBytes = 16 << 20;

  /// Opens the file for appending; `anew` empties it first. Errors (`component`): it cannot be opened.
  RecordFile(std::string path, const char* component, bool anew);
  /// Tries once more to write pending records; errors are ignored.
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  /// Adds a record to the pending ones; flush() writes it. If it exceeds kMaxPendingBytes, it is dropped.
  void add(std::string_view record);
  /// Passes all added records to the system.
  /// Errors (`component`): the file cannot be written, and the records remain pending. Or it was written, but add() had
  /// dropped records, which are lost.
  void flush();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const char* component_;
  int descriptor_ = -1;
  std::string pending_;
  int64_t dropped_ = 0;
};

}  // namespace colossal::report
