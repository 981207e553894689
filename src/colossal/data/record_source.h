// The records of one source of a data stream: files of JSON lines or Parquet, read from the disk again and again.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "colossal/data/record_lines.h"

namespace colossal::data {

/// What is done with a line, or the rest of a file, that cannot be read.
enum class Faults { Refuse, Skip };

/// Which records of the files a source gives.
enum class Part { All, Training, HeldOut };

struct RecordOptions {
  uint64_t seed = 0;
  bool shuffle = true;
  int64_t shuffle_bytes = 64 << 20;    ///< of memory for lines that are held and given in another order
  int64_t longest_line = 16 << 20;     ///< bytes; a longer one is a fault
  std::vector<std::string> columns{};  ///< of Parquet files, those that are read; none: all
  double held_out = 0;                 ///< the probability of each record to be held out, by its file's name and line
  Part part = Part::All;
  Faults faults = Faults::Refuse;
};

/// A line as it stands in a file, or a row of Parquet as an object.
struct Record {
  std::string line;
  std::shared_ptr<const std::string> path;
  int64_t number = 0;  ///< of the line, from 1

  std::string place() const;  ///< `path:number`, for messages
  /// Bytes that holding it takes, at most: of the line and of what is kept beside it.
  int64_t held_bytes() const;
};

/// Where a source stands: block by block, of which `taken` records are given.
struct SourcePosition {
  int64_t epoch = 0, block = 0, file = 0;  ///< `file`: in the order of the epoch
  LinePosition line;                       ///< where the block begins in it
  int64_t taken = 0;
  nlohmann::json encode() const;
  /// Errors: position_number()'s.
  static SourcePosition decode(const nlohmann::json& state);
};

/// An endless stream of records, epoch after epoch.
///
/// An epoch visits the files in an order of its own. Lines are read in blocks that take `shuffle_bytes` of memory (one
/// line more at most), which may span files; each block is given in an order that follows from (seed, epoch, block): a
/// position is a few numbers, and seeking reads one block. Without shuffle all is in the order of the files and lines.
/// Memory: one block. Cost of seek(): plain files are read from the block's start, of packed ones all before it is
/// unpacked again.
/// Thread safety: one thread calls the members.
class RecordSource {
 public:
  /// `names` are those that the files keep where the folder moves; they decide what is held out.
  RecordSource(std::vector<std::string> paths, std::vector<std::string> names, const RecordOptions& options);
  /// The next record. Errors ("data"): an epoch without records; with Faults::Refuse what cannot be read, by file
  /// and line. With Faults::Skip that is passed over: take_faults() tells.
  Record next();
  /// Whether the present epoch has no further record: next() then gives the first of the next one.
  bool at_end();
  SourcePosition position() const { return position_; }
  void seek(const SourcePosition& position);
  /// Lines and ends of files that were passed over since the last call, in words, in their order. Those of a block are
  /// told with its first record, and not again by who goes on in the middle of it.
  std::vector<std::string> take_faults();

 private:
  void load();  // the block that begins at position_
  bool next_line(Record& record);
  bool read_line(Record& record);
  bool is_wanted(const Record& record, int64_t file) const;
  int64_t file_of(int64_t place) const;
  void fault(const std::string& what);

  std::vector<std::shared_ptr<const std::string>> paths_;
  std::vector<std::string> names_;
  RecordOptions options_;
  SourcePosition position_;
  std::deque<Record> block_;  // no vector, whose growth would copy them
  bool is_loaded_ = false;
  SourcePosition behind_;  // where the block after this one begins
  int64_t place_ = 0;      // of the file that is read, in the epoch's order
  std::unique_ptr<RecordLines> reader_;
  std::vector<std::string> faults_;
};

}  // namespace colossal::data
