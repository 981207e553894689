// A file that grows by whole records, and is of no consequence to the run: a full disk delays it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace colossal::report {

/// What cannot be written stays in memory, up to kMostPending bytes, and is tried again with what comes next. No reader
/// meets half a record but the last, after a kill.
class RecordFile {
 public:
  static constexpr size_t kMostPending = 16 << 20;

  /// Opens for appending, or empties the file first. Errors (`component`): it cannot be opened.
  RecordFile(std::string path, const char* component, bool anew);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  void add(std::string_view record);
  /// Hands everything added to the system. Errors (`component`): it cannot be written now, and waits; or it was
  /// written, but for records that found too much waiting, which are lost.
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
