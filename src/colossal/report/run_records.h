// Records of a run besides its metrics: its starts, sampled texts, and the measurements of each rank. Files have one
// JSON object per line.
//
//   RunRecorder recorder("runs/a/history.jsonl", "runs/a/ranks.jsonl", /*anew=*/true);
//   recorder.write(StartRecord{.kind = "new", .time = now, .command = {"colossal", "train", "a.toml"}});
//   recorder.write(RankMetrics{.step = 1, .seconds = {0.11, 0.12}, .peak_bytes = {1 << 20, 1 << 21}});
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/report/metrics.h"
#include "colossal/report/record_file.h"

namespace colossal::report {

/// One axis of the mesh of ranks.
struct MeshAxis {
  std::string name;
  int size = 1;

  void fields(Fields& f);
};

/// What a run says of itself: its model, the number of its parameters, its machine, ...
struct RunFact {
  std::string name, value;

  void fields(Fields& f);
};

/// One start of a run: the first one, or a resumption.
struct StartRecord {
  std::string kind = "new";                 ///< "new", "resume" or "overwrite"
  int64_t after = 0;                        ///< number of steps done before the start
  double time = 0;                          ///< seconds since 1970, UTC
  std::vector<std::string> command = {};    ///< arguments of the command line
  std::string version = {}, revision = {};  ///< version and revision of colossal; revision is empty if
                                            ///< unknown
  std::vector<MeshAxis> mesh = {};          ///< outermost axis first
  std::vector<RunFact> facts = {};

  void fields(Fields& f);
};

/// What the model made: a text, or a file.
struct SampleRecord {
  int64_t step = 0;  ///< number of steps done
  std::string prompt, text;
  std::string file{};  ///< path within the run folder: "samples/step-000100-circle.png"; empty = a text

  void fields(Fields& f);
};

/// The measurements of each rank in one step.
struct RankMetrics {
  int64_t step = 0;
  std::vector<double> seconds = {};      ///< per rank: time from the start of the step until the rank finished it
  std::vector<int64_t> peak_bytes = {};  ///< per rank: peak memory so far

  void fields(Fields& f);
};

/// Return the line of a record, without its line end. Bytes that are not UTF-8 are replaced by U+FFFD.
std::string to_json_line(const StartRecord& start);
std::string to_json_line(const SampleRecord& sample);
std::string to_json_line(const RankMetrics& ranks);

/// A recorder that appends records to the two files of a run and passes each to the system at once.
class RunRecorder {
 public:
  /// Opens both files for appending; `anew` empties them first. Terminates a last line that a kill cut short.
  /// Errors ("records"): a file cannot be opened.
  RunRecorder(const std::string& history, const std::string& ranks, bool anew);

  /// Append a record. Errors ("records"): it cannot be written (a full disk); it remains pending until the next call.
  void write(const StartRecord& start);
  void write(const SampleRecord& sample);
  /// Appends a record of a step. With more than 64 ranks only every (ranks / 64)th step is written. The growth of the
  /// file per step is therefore independent of the number of ranks.
  void write(const RankMetrics& ranks);

 private:
  RecordFile history_, ranks_;
};

/// The valid starts and samples of a history.jsonl, in order.
struct RunHistory {
  std::vector<StartRecord> starts;
  std::vector<SampleRecord> samples;  ///< sorted by step; a resumption drops samples of steps after its checkpoint
};

/// Reads a history.jsonl. A line that is not such a record is counted in `damaged` and skipped.
/// Errors ("file"): the file cannot be read.
RunHistory read_history(const std::string& path, DamagedLines& damaged);
/// Reads a ranks.jsonl in the order of the steps; the same errors. A step that was repeated after a resume replaces the
/// older record and all later ones.
std::vector<RankMetrics> read_rank_metrics(const std::string& path, DamagedLines& damaged);

}  // namespace colossal::report
