// report.html: one file that shows a run to a person, without a network and without other files.
//
//   report::Report report;
//   report.title = "runs/quickstart";
//   report.steps = report::read_metrics("runs/quickstart/metrics.jsonl");
//   write_file("report.html", report::render_report(report));
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/report/metrics.h"
#include "colossal/report/pipeline_timeline.h"

namespace colossal::report {

struct Report {
  struct Axis {
    std::string name;
    int size = 1;
  };
  std::string title;                                       // the run folder
  std::vector<StepMetrics> steps;                          // in order; may be empty
  std::vector<Axis> mesh;                                  // outermost first, as comm::Mesh has it
  std::vector<std::pair<std::string, std::string>> facts;  // rows for the summary: model, parameters, machine, ...
  std::string config;                                      // resolved, TOML
  std::string prompt, sample;                              // text of the model; may be empty
  std::optional<PipelineTimeline> timeline = {};           // of the last step in a pipeline
};

/// The whole page: summary, plots (loss, learning rate, gradient norm, tokens/s, MFU, memory), pipeline, layout,
/// config, sample. Light or dark as the reader's system is. Cost: linear in the steps; a page of 100,000 steps has
/// about 300 KB.
std::string render_report(const Report& report);

}  // namespace colossal::report
