// One page that shows runs to a person, without a network and without other files: report.html, `colossal report`.
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

struct Report {
  std::vector<RecordedRun> runs;                      ///< one or more
  std::string defaults = {};                          ///< TOML: the config that a run has without a file and flags
  std::optional<PipelineTimeline> timeline = {};      ///< of the last step in a pipeline
};

/// The whole page: summary, charts of all runs in one frame (loss, learning rate, gradient norm, speed, memory), charts
/// of each rank, samples, keys of the config, starts, layout. Light or dark as the reader's system is.
/// Cost: linear in the steps. Size: see chart_data(); a million steps of eight ranks take about 1 MB.
std::string render_report(const Report& report);

/// The training loss of the runs in one frame as an SVG document; a run is named by its folder's last part. The note
/// says how far two runs differ at one step at most. Errors ("report"): more than seven runs.
std::string render_losses(const std::vector<RecordedRun>& runs);

}  // namespace colossal::report
