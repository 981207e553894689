// What a run keeps about itself besides its metrics: how it was started, sampled texts, and the measurements of each
// rank. One JSON object per line.
//
//   RunRecorder recorder("runs/a/history.jsonl", "runs/a/ranks.jsonl", /*anew=*/true);
//   recorder.write(StartRecord{.kind = "new", .time = now, .command = {"colossal", "train", "a.toml"}});
//   recorder.write(RankMetrics{.step = 1, .seconds = {0.11, 0.12}, .peak_bytes = {1 << 20, 1 << 21}});
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "colossal/report/metrics.h"
#include "colossal/report/record_file.h"

namespace colossal::report {

/// One axis of the mesh of ranks.
struct MeshAxis {
  std::string name;
  int size = 1;
};

/// One start of a run: the first one, and each that resumes it.
struct StartRecord {
  std::string kind = "new";                                ///< "new", "resume" or "overwrite"
  int64_t after = 0;                                       ///< steps that were done before
  double time = 0;                                         ///< seconds since 1970, UTC
  std::vector<std::string> command = {};                   ///< words of the command line
  std::string version = {}, revision = {};                 ///< of colossal; revision is empty if unknown
  std::vector<MeshAxis> mesh = {};                         ///< outermost axis first
  std::vector<std::pair<std::string, std::string>> facts = {};  ///< names and values: model, parameters, machine, ...
};

/// A text that the model wrote.
struct SampleRecord {
  int64_t step = 0;  ///< steps that were done
  std::string prompt, text;
};

/// The measurements of each rank in one step.
struct RankMetrics {
  int64_t step = 0;
  std::vector<double> seconds = {};      ///< from the start of the step until the rank finished it, by rank
  std::vector<int64_t> peak_bytes = {};  ///< peak memory so far, by rank
};

/// The line of each record, without its end. Text that is not UTF-8 is replaced by U+FFFD.
std::string to_json_line(const StartRecord& start);
std::string to_json_line(const SampleRecord& sample);
std::string to_json_line(const RankMetrics& ranks);

/// Appends records to the two files of a run, and hands each to the system at once.
class RunRecorder {
 public:
  /// Opens both files for appending, or empties them first. A last line that a kill cut short is ended.
  /// Errors ("records"): a file cannot be opened.
  RunRecorder(const std::string& history, const std::string& ranks, bool anew);

  /// Errors ("records"): the record cannot be written (a full disk); it waits for the next call.
  void write(const StartRecord& start);
  void write(const SampleRecord& sample);
  /// Writes each step with up to 64 ranks, and every (ranks / 64)th step with more, so that the file's growth per step
  /// does not depend on the number of ranks.
  void write(const RankMetrics& ranks);

 private:
  RecordFile history_, ranks_;
};

/// The starts and samples of a history.jsonl that count, in order.
struct RunHistory {
  std::vector<StartRecord> starts;
  std::vector<SampleRecord> samples;  ///< by step; a start drops those of later steps than it resumed after
};

/// Reads a history.jsonl or ranks.jsonl. A line that is not such a record is counted in `damaged` and left out.
/// Errors ("file"): the file cannot be read.
RunHistory read_history(const std::string& path, DamagedLines& damaged);
/// In the order of the steps: a step that was repeated after a resume replaces the older one and all later ones.
std::vector<RankMetrics> read_rank_metrics(const std::string& path, DamagedLines& damaged);

}  // namespace colossal::report
