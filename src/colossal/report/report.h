// The report page of runs: a single HTML file that needs no network and no other files. Used for report.html and
// `colossal report`.
//
//   const report::Report report{.runs = {report::read_run("runs/a"), report::read_run("runs/b")}};
//   write_file("report.html", report::render_report(report));
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "colossal/report/pipeline_timeline.h"
#include "colossal/report/recorded_run.h"

namespace colossal::report {

/// The contents of a report.
struct Report {
  std::vector<RecordedRun> runs;                  ///< at least one
  std::string defaults = {};                      ///< TOML of the config without a file and flags
  std::optional<PipelineTimeline> timeline = {};  ///< the last training step of a pipeline; no value = no pipeline
};

/// Returns the page: summary, charts of all runs together (loss, learning rate, gradient norm, speed, memory), charts
/// of each rank, samples, config keys, starts, layout. It is light or dark according to the reader's system.
/// Cost: linear in the steps. Size: see chart_data(); a million steps of eight ranks take about 1 MB.
std::string render_report(const Report& report);

/// Returns the training losses of the runs in one frame as an SVG document. Each run is named by the last part of its
/// folder. The note states the largest difference between two runs at any step.
/// Errors ("report"): more than seven runs.
std::string render_losses(const std::vector<RecordedRun>& runs);

}  // namespace colossal::report
