// Everything that a run folder says about its run, read tolerantly: the run may still be training or be damaged.
//
//   const RecordedRun run = read_run("runs/quickstart");
//   for (const std::string& what : run.missing) warn(what);
#pragma once
#include <string>
#include <vector>

#include "colossal/report/metrics.h"
#include "colossal/report/run_records.h"

namespace colossal::report {

struct RecordedRun {
  std::string name;                   ///< the folder as it was named
  RecordedSteps steps;                ///< by step, each once
  MetricNames names;                  ///< how the metrics of steps are drawn; empty in a run of an older version
  std::vector<RankMetrics> ranks;     ///< by step; empty if the run did not record them
  std::vector<StartRecord> starts;    ///< in order of time; empty if the run did not record them
  std::vector<SampleRecord> samples;  ///< by step
  std::string config;                 ///< the resolved config as TOML; empty if it is missing
  std::vector<std::string> missing;   ///< a sentence for each thing that could not be read
};

/// Reads config.toml, metrics.jsonl, metrics.json, history.jsonl and ranks.jsonl of the folder. If a step is there
/// twice, its newer line counts, and the older lines of later steps are removed.
/// Errors ("report"): no such folder; a folder that holds neither config.toml nor metrics.jsonl; one of the files is no
/// regular file. ("file"): a file cannot be read.
RecordedRun read_run(const std::string& folder);

}  // namespace colossal::report
