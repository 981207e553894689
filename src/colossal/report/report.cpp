#include "colossal/report/report.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/html.h"
#include "colossal/base/join.h"
#include "colossal/base/progress.h"
#include "colossal/base/version.h"
#include "colossal/report/charts.h"
#include "colossal/report/config_keys.h"
#include "colossal/report/plot.h"
#include "colossal/report/predicted_step.h"
#include "colossal/report/report_page.h"
#include "colossal/report/run_sections.h"

namespace colossal::report {
namespace {

constexpr int64_t kMaxCells = 512;  // maximum number of ranks that are drawn individually

std::string tile(const std::string& value, const std::string& name, const std::string& note = "") {
  return "<div class='card tile'><b>" + html_text(value) + "</b><span>" + html_text(name) + "</span>" +
         (note.empty() ? "" : "<small>" + html_text(note) + "</small>") + "</div>";
}

std::string tenths(double value) { return short_number(std::round(10 * value) / 10); }

std::string percent(double share) { return short_number(std::round(1000 * share) / 10) + " %"; }

std::string tiles_of(const RecordedSteps& steps) {
  if (steps.empty()) return "<p class='card'>No step has been taken yet.</p>";
  const RunSummary run = summarize(steps);
  std::string out = "<section class='tiles'>";
  out += tile(concat(run.steps), "steps", readable_duration(run.seconds) + " of training");
  if (run.loss)
    out += tile(short_number(*run.loss), "loss", run.first_loss ? "from " + short_number(*run.first_loss) : "");
  if (run.eval_loss) {
    const std::string note = run.perplexity ? "perplexity " + short_number(*run.perplexity) : "";
    out += tile(short_number(*run.eval_loss), "evaluation loss", note);
    if (run.accuracy) out += tile(percent(*run.accuracy), "held-out accuracy");
  }
  out += tile(short_number(std::round(run.tokens_per_second)), "tokens per second", "median of the steps");
  if (run.mfu) out += tile(percent(*run.mfu), "of the matmul peak", "model FLOPs");
  out += tile(readable_bytes(run.peak_bytes), "peak memory", "largest rank");
  out += tile(short_number(run.tokens), "tokens seen");
  return out + "</section>\n";
}

/// Returns the position of a row on the axes that are not columns: "data 1" or "data 1, pipeline 0".
std::string row_name(const std::vector<MeshAxis>& axes, int64_t row) {
  std::string name;
  for (size_t i = axes.size(); i-- > 0;) {
    if (axes[i].size == 1) continue;
    name = concat(axes[i].name, " ", row % axes[i].size, name.empty() ? "" : ", ", name);
    row /= axes[i].size;
  }
  return name;
}

std::string layout_of(const std::vector<MeshAxis>& mesh) {
  std::vector<MeshAxis> rows;  // axes with more than one rank, outermost first; the innermost axis becomes the columns
  for (const auto& axis : mesh) {
    if (axis.size > 1) rows.push_back(axis);
  }
  const MeshAxis columns = rows.empty() ? MeshAxis{"", 1} : rows.back();
  if (!rows.empty()) rows.pop_back();
  int64_t count = 1;
  for (const auto& axis : rows) count = std::min<int64_t>(count * axis.size, int64_t{1} << 40);
  std::string out = "<section class='card'><h2>Layout</h2><p>" + html_text(layout_text(mesh)) + "</p>";
  if (columns.size > kMaxCells) return out + "</section>\n";
  out += "<div class='scroll'><table class='mesh'><tr><th></th>";
  for (int c = 0; c < columns.size && columns.size > 1; ++c)
    out += "<th>" + html_text(concat(columns.name, " ", c)) + "</th>";
  out += "</tr>";
  const int64_t shown = std::min(count, kMaxCells / columns.size);
  for (int64_t r = 0; r < shown; ++r) {
    out += "<tr><th>" + html_text(row_name(rows, r)) + "</th>";
    for (int64_t c = 0; c < columns.size; ++c)
      out += concat("<td class='shade", r % 4, "'>rank ", r * columns.size + c, "</td>");
    out += "</tr>";
  }
  out += "</table></div>";
  if (shown < count) out += concat("<p>and ", (count - shown) * columns.size, " more ranks</p>");
  return out + "</section>\n";
}

/// Returns the ranks for which a rank waited, the longest wait first: "rank 1 3.2, rank 3 0.5".
std::string waits_of(const std::vector<double>& waited) {
  std::vector<std::pair<double, size_t>> longest;
  for (size_t rank = 0; rank < waited.size(); ++rank)
    if (waited[rank] > 0) longest.emplace_back(waited[rank], rank);
  std::sort(longest.rbegin(), longest.rend());
  if (longest.empty()) return "none";
  return join(longest, ", ", [](const auto& wait) { return concat("rank ", wait.second, " ", tenths(wait.first)); });
}

std::string timeline_of(const PipelineTimeline& timeline) {
  const schedule::Timeline &planned = timeline.planned, &measured = timeline.measured;
  std::string out =
      "<section class='card'><h2>Pipeline</h2><p>The last step as planned, with the measured average time of each "
      "kind of step on each rank and no time for messages, and as measured. Times are milliseconds. "
      "pipeline_trace.json in the run folder holds the same for Perfetto.</p><div class='scroll'>" +
      schedule::draw_svg(timeline.titled()) + "</div>";
  out +=
      "<div class='scroll'><table class='numbers'><tr><th>rank</th><th>busy</th><th>waiting, "
      "planned</th><th>measured</th><th>waited for</th>"
      "<th>live activations, planned</th><th>measured</th></tr>";
  const auto cell = [&](const std::string& text) { out += "<td>" + html_text(text) + "</td>"; };
  for (int rank = 0; rank < measured.ranks; ++rank) {
    out += concat("<tr><th>", rank, "</th>");
    cell(tenths(measured.busy[rank]));
    for (const auto* times : {&planned, &measured}) cell(tenths(times->span[rank] - times->busy[rank]));
    cell(waits_of(timeline.waited[rank]));
    for (const auto* times : {&planned, &measured}) cell(short_number(times->peak_live[rank]));
    out += "</tr>";
  }
  return out + "</table></div><p>Bubble: planned " + percent(planned.bubble()) + ", measured " +
         percent(measured.bubble()) +
         ". Waiting counts from a rank's first step to the end of its last; time that is not spent waiting for another "
         "rank is its own, between steps.</p></section>\n";
}

std::string facts_of(const RecordedRun& run) {
  std::string out = "<section class='card'><h2>Run</h2><table class='facts'>";
  const auto row = [&](const std::string& name, const std::string& value) {
    out += "<tr><th>" + html_text(name) + "</th><td>" + html_text(value) + "</td></tr>";
  };
  if (!run.starts.empty()) {
    row("started", utc_time(run.starts.front().time));
    for (const auto& [name, value] : run.starts.back().facts) row(name, value);
  }
  row("report written", utc_time(static_cast<double>(std::time(nullptr))));
  row("by colossal", version());
  return out + "</table></section>\n";
}

/// Returns TOML with headers and keys highlighted, one block per table. Our own printer never splits a value over
/// lines.
std::string config_of(const std::string& toml) {
  std::string out = toml.compare(0, 1, "[") == 0 ? "" : "<div>";
  for (size_t begin = 0; begin < toml.size();) {
    const size_t end = std::min(toml.find('\n', begin), toml.size());
    const std::string line = toml.substr(begin, end - begin);
    const size_t equals = line.find(" = ");
    if (line.compare(0, 1, "[") == 0) {
      out += (out.empty() ? "<div><b>" : "</div><div><b>") + html_text(line) + "</b>\n";
    } else if (equals != std::string::npos) {
      out += "<i>" + html_text(line.substr(0, equals)) + "</i>" + html_text(line.substr(equals)) + "\n";
    } else if (!line.empty()) {
      out += html_text(line) + "\n";
    }
    begin = end + 1;
  }
  return out + "</div>";
}

std::string configs_of(const std::vector<RecordedRun>& runs) {
  std::string out;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].config.empty()) continue;
    const std::string config = "<pre class='config'>" + config_of(runs[i].config) + "</pre>";
    out += runs.size() == 1
               ? config
               : concat("<details><summary>", i + 1, " ", html_text(runs[i].name), "</summary>", config, "</details>");
  }
  return out.empty() ? "" : "<section class='card'><h2>Configuration</h2>" + out + "</section>\n";
}

}  // namespace

std::string render_report(const Report& report) {
  const std::vector<RecordedRun>& runs = report.runs;
  const bool several = runs.size() > 1;
  std::vector<std::string> configs;
  for (const RecordedRun& run : runs) configs.push_back(run.config);
  std::string out = missing_section(runs);
  out += several ? runs_section(runs) : tiles_of(runs.at(0).steps) + predicted_section(runs[0]);
  out += controls_section();
  out +=
      "<section class='plots' id='charts'></section><noscript><p class='card'>The charts need JavaScript.</p>"
      "</noscript>\n";
  if (report.timeline) out += timeline_of(*report.timeline);
  out += samples_section(runs) + keys_section(runs, config_keys(configs, report.defaults)) + starts_section(runs);
  if (!several) {
    const std::vector<MeshAxis> mesh = runs[0].starts.empty() ? std::vector<MeshAxis>{} : runs[0].starts.back().mesh;
    out += "<section class='pair'>" + (mesh.empty() ? "" : layout_of(mesh)) + facts_of(runs[0]) + "</section>\n";
  }
  out += configs_of(runs) + chart_data(runs);
  return render_page(several ? concat(runs.size(), " training runs") : "Training run",
                     join(runs, ", ", &RecordedRun::name), out, charts_script());
}

std::string render_losses(const std::vector<RecordedRun>& runs) {
  const MetricEntry loss = entry_of(runs.empty() ? MetricNames{} : runs[0].names, "loss");
  Plot plot{.title = concat(loss.legend, loss.unit.empty() ? "" : concat(" (", loss.unit, ")")), .series = {}};
  for (const RecordedRun& run : runs) {
    const std::filesystem::path folder = std::filesystem::path(run.name).lexically_normal();
    const std::string name = folder.has_filename() ? folder.filename() : folder.parent_path().filename();
    Series series{name, "", {}, {}};
    if (const MetricColumn* column = run.steps.find("loss")) {
      for (const size_t at : column->at) series.x.push_back(static_cast<double>(run.steps.numbers()[at]));
      series.y = column->values;
    }
    plot.series.push_back(std::move(series));
  }
  const double difference = largest_difference(plot.series);
  std::string note;
  if (runs.size() > 1 && std::isfinite(difference))
    note = concat(runs.size(), " runs; the largest difference at one step is ", short_number(difference));
  return render_svg(plot, note);
}

}  // namespace colossal::report
