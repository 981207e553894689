// The records of one source of a data stream: files of JSON lines, Parquet or FASTA, read from the disk in every epoch.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/data/streams/record_lines.h"

namespace colossal::data {

/// The reaction to a line, or to the rest of a file, that cannot be read: an error, or skipping it with a notice.
enum class OnError { Refuse, Skip };

/// A counter of skipped records: those that could not be read. It limits the notices so that a log stays short: the
/// first 20 give a notice each, and after them every thousandth.
class SkippedRecords {
 public:
  void add(const std::string& what) {
    if (++count_ <= kNamed || count_ % 1000 == 0)
      notices_.push_back(concat("skipped: ", what, " (", count_, " so far)"));
  }
  /// Returns the notices since the last call, one line each.
  std::vector<std::string> take_notices() { return std::exchange(notices_, {}); }
  int64_t count() const { return count_; }
  /// Sets the count to `count`, as after a resume, and drops the notices.
  void begin_at(int64_t count) {
    count_ = count;
    notices_.clear();
  }

 private:
  static constexpr int64_t kNamed = 20;
  int64_t count_ = 0;
  std::vector<std::string> notices_;
};

/// The subset of the records that a source returns.
enum class Part { All, Training, HeldOut };

/// Options of a RecordSource.
struct RecordOptions {
  uint64_t seed = 0;
  bool shuffle = true;
  int64_t shuffle_bytes = 64 << 20;    ///< bytes of memory for the block of lines that is shuffled
  int64_t max_line_bytes = 16 << 20;   ///< maximum bytes of a line; a longer one is a fault
  std::vector<std::string> columns{};  ///< columns of Parquet files to read; empty = all
  double held_out = 0;                 ///< probability that a record is held out, drawn from its file's name and line
  Part part = Part::All;
  OnError on_error = OnError::Refuse;
};

/// One line of a file, or one row of a Parquet file or record of a FASTA file as a JSON object.
struct Record {
  std::string line;
  std::shared_ptr<const std::string> path;
  int64_t number = 0;  ///< number of the line, from 1

  std::string place() const;  ///< `path:number`, for messages
  /// Returns an upper bound of the bytes that the record takes in memory, with the overhead of its containers.
  int64_t held_bytes() const;
};

/// The position of a source: a block, and the number of its records that were returned.
struct SourcePosition {
  int64_t epoch = 0, block = 0, file = 0;  ///< `file` is an index in the order of the epoch
  LinePosition line;                       ///< start of the block in that file
  int64_t taken = 0;                       ///< number of records of the block that were returned
  nlohmann::json encode() const;
  /// Errors: the same as position_number().
  static SourcePosition decode(const nlohmann::json& state);
};

/// An endless stream of records, epoch after epoch.
///
/// Each epoch has its own order of the files. Lines are read in blocks that take `shuffle_bytes` of memory (at most one
/// line more), and a block may span files. The order within a block is a function of (seed, epoch, block). A position
/// is therefore a few numbers, and seek() reads one block. Without shuffle, records are in the order of the files and
/// lines.
/// Memory: one block.
/// Cost:   seek() reads plain files from the start of the block; it unpacks a packed file again up to there.
/// Thread safety: one thread calls the members.
class RecordSource {
 public:
  /// `names` are names of the files that do not change if the folder moves. They decide which records are held out.
  RecordSource(std::vector<std::string> paths, std::vector<std::string> names, const RecordOptions& options);
  /// Returns the next record. Errors ("data"): an epoch has no records; with OnError::Refuse, data cannot be read (with
  /// file and line). With OnError::Skip such data is skipped, and take_faults() reports it.
  Record next();
  /// Returns true if the current epoch has no further record. next() then returns the first record of the next epoch.
  bool at_end();
  SourcePosition position() const { return position_; }
  void seek(const SourcePosition& position);
  /// Returns messages about the lines and ends of files that were skipped since the last call, in their order. The
  /// messages of a block are reported with its first record. A source that resumes within the block does not repeat
  /// them.
  std::vector<std::string> take_faults();

 private:
  void load();  // reads the block that begins at position_
  bool next_line(Record& record);
  bool read_line(Record& record);
  bool is_wanted(const Record& record, int64_t file) const;
  int64_t file_of(int64_t place) const;
  void fault(const std::string& what);

  std::vector<std::shared_ptr<const std::string>> paths_;
  std::vector<std::string> names_;
  RecordOptions options_;
  SourcePosition position_;
  std::deque<Record> block_;  // not a vector, because its growth would copy the records
  bool is_loaded_ = false;
  SourcePosition behind_;  // the start of the block after this one
  int64_t place_ = 0;      // the file that is being read, as an index in the epoch's order
  std::unique_ptr<RecordLines> reader_;
  std::vector<std::string> faults_;
};

}  // namespace colossal::data
