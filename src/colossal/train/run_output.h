// The files that rank 0 of a run writes while it trains: metrics, TensorBoard events, and records of starts, samples
// and ranks. Also the line of progress in the terminal.
//
//   RunOutput output(folder, resumed_after, config.training.steps, log);
//   output.record(report::StartRecord{.kind = "new"});
//   output.write(metrics, ranks);                        // after each step
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "colossal/base/log.h"
#include "colossal/base/progress.h"
#include "colossal/base/run_folder.h"
#include "colossal/report/metrics.h"
#include "colossal/report/run_records.h"
#include "colossal/report/tensorboard.h"

namespace colossal::train {

/// The output files of a run. A failure to write does not end the run: it is logged once when it begins and once when
/// it ends, and pending data is written as soon as writing works again.
class RunOutput {
 public:
  /// Opens the files. `resumed_after` is the number of steps after which a resumed run goes on: later rows are removed.
  /// None: the files start anew. `steps`: steps of the whole run. `log` must outlive the object. `style`: how the line
  /// of progress is shown.
  /// Errors: a file cannot be opened.
  RunOutput(const RunFolder& folder, std::optional<int64_t> resumed_after, int64_t steps, const Log& log,
            ProgressStyle style = ProgressStyle::kAuto);

  /// Writes the metrics of a step and the measurements of its ranks, and updates the line of progress.
  void write(const report::StepMetrics& metrics, const report::RankMetrics& ranks);
  /// Writes a report::StartRecord, SampleRecord or RankMetrics.
  template <class Record>
  void record(const Record& what) {
    records_try_.run(log_, [&] { records_.write(what); });
  }
  /// Ends the line of progress, after the last step.
  void finish() { progress_.finish(); }

 private:
  /// Runs work whose failure does not end a run.
  class Tolerated {
   public:
    void run(const Log& log, const std::function<void()>& work);

   private:
    bool fails_ = false;
    std::string message_;
  };

  const Log& log_;
  report::MetricsWriter metrics_;
  report::EventWriter events_;
  report::RunRecorder records_;
  Tolerated metrics_try_, events_try_, records_try_;
  Progress progress_;
};

}  // namespace colossal::train
