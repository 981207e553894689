#include "colossal/report/report.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <optional>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/progress.h"
#include "colossal/base/version.h"
#include "colossal/report/html.h"
#include "colossal/report/plot.h"
#include "colossal/report/report_page.h"

namespace colossal::report {
namespace {

constexpr int64_t kMostCells = 512;  // ranks drawn one by one
constexpr size_t kSmoothFrom = 60;   // steps from which the loss is also drawn smoothed

using Column = std::function<std::optional<double>(const StepMetrics&)>;

Series column(const std::vector<StepMetrics>& steps, const char* name, const char* style, const Column& value) {
  Series series{name, style, {}, {}};
  for (const auto& metrics : steps) {
    const auto y = value(metrics);
    if (!y) continue;
    series.x.push_back(static_cast<double>(metrics.step));
    series.y.push_back(*y);
  }
  return series;
}

/// Mean over a window of a fiftieth of the run around each step; values that are not finite stay gaps and count for
/// nothing.
Series smoothed(const Series& raw, const char* name, const char* style) {
  const size_t count = raw.y.size(), reach = std::max<size_t>(2, count / 100);
  std::vector<double> sums(count + 1, 0.0);
  std::vector<double> weights(count + 1, 0.0);
  for (size_t i = 0; i < count; ++i) {
    const bool finite = std::isfinite(raw.y[i]);
    sums[i + 1] = sums[i] + (finite ? raw.y[i] : 0.0);
    weights[i + 1] = weights[i] + (finite ? 1.0 : 0.0);
  }
  Series out{name, style, raw.x, raw.y};
  for (size_t i = 0; i < count; ++i) {
    if (!std::isfinite(raw.y[i])) continue;
    const size_t side = std::min({reach, i, count - 1 - i});  // shorter at both ends, so that it stays centred
    out.y[i] = (sums[i + side + 1] - sums[i - side]) / (weights[i + side + 1] - weights[i - side]);
  }
  return out;
}

std::vector<Plot> plots_of(const std::vector<StepMetrics>& steps) {
  Series loss = column(steps, "training loss", "first", [](auto& m) { return m.loss; });
  Series eval = column(steps, "evaluation loss", "second", [](auto& m) { return m.eval_loss; });
  Plot losses{.title = "Loss", .series = {}};
  if (loss.x.size() >= kSmoothFrom) {
    losses.series.push_back(loss);
    losses.series.back().style = "faint";
    losses.series.push_back(smoothed(loss, "smoothed", "first"));
  } else {
    losses.series.push_back(loss);
  }
  if (!eval.x.empty()) losses.series.push_back(eval);
  const auto single = [&](const char* title, bool from_zero, PlotUnit unit, const Column& value) {
    return Plot{.title = title, .unit = unit, .from_zero = from_zero, .series = {column(steps, title, "first", value)}};
  };
  std::vector<Plot> plots{losses};
  if (eval.x.size() > 1) {
    plots.push_back({.title = "Evaluation loss", .series = {eval}});
    plots.back().series[0].style = "second";
  }
  Series accuracy = column(steps, "held-out accuracy", "second", [](auto& m) { return m.accuracy; });
  if (!accuracy.x.empty()) plots.push_back({.title = "Held-out accuracy", .from_zero = true, .series = {accuracy}});
  plots.push_back(single("Learning rate", true, PlotUnit::kNumber, [](auto& m) { return m.learning_rate; }));
  plots.push_back(single("Gradient norm", true, PlotUnit::kNumber, [](auto& m) { return m.grad_norm; }));
  plots.push_back(single("Tokens per second", true, PlotUnit::kNumber, [](auto& m) { return m.tokens_per_second; }));
  plots.push_back(single("Peak memory of a rank", true, PlotUnit::kBytes,
                         [](auto& m) { return static_cast<double>(m.peak_bytes); }));
  const auto tier = [&](const char* name, const char* style, int64_t TierMetrics::* bytes) {
    return column(steps, name, style, [bytes](const StepMetrics& m) -> std::optional<double> {
      if (!m.tiers) return std::nullopt;
      return static_cast<double>((*m.tiers).*bytes);
    });
  };
  const Series in_host = tier("host memory", "first", &TierMetrics::host_bytes);
  if (in_host.x.empty()) return plots;
  plots.push_back({.title = "Parameters, gradients and states",
                   .unit = PlotUnit::kBytes,
                   .from_zero = true,
                   .series = {in_host, tier("disk alone", "second", &TierMetrics::disk_bytes)}});
  plots.push_back({.title = "Moved in a step",
                   .unit = PlotUnit::kBytes,
                   .from_zero = true,
                   .series = {tier("read from the disk", "first", &TierMetrics::bytes_read),
                              tier("written to it", "second", &TierMetrics::bytes_written)}});
  const auto device = [&](const char* name, const char* style, int64_t DeviceMetrics::* bytes) {
    return column(steps, name, style, [bytes](const StepMetrics& m) -> std::optional<double> {
      if (!m.tiers || !m.tiers->device) return std::nullopt;
      return static_cast<double>((*m.tiers->device).*bytes);
    });
  };
  const Series peak = device("all", "first", &DeviceMetrics::peak_bytes);
  if (peak.x.empty()) return plots;
  plots.push_back({.title = "Device of a rank at most",
                   .unit = PlotUnit::kBytes,
                   .from_zero = true,
                   .series = {peak, device("parameters and states", "second", &DeviceMetrics::model_bytes)}});
  plots.push_back({.title = "Copied in a step",
                   .unit = PlotUnit::kBytes,
                   .from_zero = true,
                   .series = {device("to devices", "first", &DeviceMetrics::bytes_in),
                              device("from devices", "second", &DeviceMetrics::bytes_out)}});
  return plots;
}

/// Median over all steps but the first, which warms up; of the only one if there is one.
template <class Number>
double median(const std::vector<StepMetrics>& steps, Number StepMetrics::* member) {
  std::vector<double> values;
  for (const auto& metrics : steps) {
    const std::optional<double> value = metrics.*member;
    if (value && std::isfinite(*value)) values.push_back(*value);
  }
  if (values.size() > 1) values.erase(values.begin());
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string tile(const std::string& value, const std::string& name, const std::string& note = "") {
  return "<div class='card tile'><b>" + html_text(value) + "</b><span>" + html_text(name) + "</span>" +
         (note.empty() ? "" : "<small>" + html_text(note) + "</small>") + "</div>";
}

std::string tenths(double value) { return short_number(std::round(10 * value) / 10); }

std::string percent(double share) { return short_number(std::round(1000 * share) / 10) + " %"; }

std::string tiles_of(const std::vector<StepMetrics>& steps) {
  if (steps.empty()) return "<p class='card'>No step has been taken yet.</p>";
  int64_t tokens = 0, peak = 0;
  double seconds = 0;
  const StepMetrics* last_eval = nullptr;
  for (const auto& metrics : steps) {
    tokens += metrics.tokens;
    seconds += std::isfinite(metrics.seconds) ? metrics.seconds : 0;
    peak = std::max(peak, metrics.peak_bytes);
    if (metrics.eval_loss) last_eval = &metrics;
  }
  const auto& last = steps.back();
  std::string out = "<section class='tiles'>";
  out += tile(concat(last.step), "steps", readable_duration(seconds) + " of training");
  out += tile(short_number(last.loss), "loss", "from " + short_number(steps.front().loss));
  if (last_eval != nullptr) {
    const std::string note = last_eval->perplexity ? "perplexity " + short_number(*last_eval->perplexity) : "";
    out += tile(short_number(*last_eval->eval_loss), "evaluation loss", note);
    if (last_eval->accuracy) out += tile(percent(*last_eval->accuracy), "held-out accuracy");
  }
  out += tile(short_number(std::round(median(steps, &StepMetrics::tokens_per_second))), "tokens per second",
              "median of the steps");
  if (steps.back().mfu) out += tile(percent(median(steps, &StepMetrics::mfu)), "of the matmul peak", "model FLOPs");
  out += tile(readable_bytes(peak), "peak memory", "of the largest rank");
  out += tile(short_number(static_cast<double>(tokens)), "tokens seen");
  return out + "</section>\n";
}

/// "data 1" or "data 1, pipeline 0": where a row of the layout stands on the axes that are not its columns.
std::string row_name(const std::vector<Report::Axis>& axes, int64_t row) {
  std::string name;
  for (size_t i = axes.size(); i-- > 0;) {
    if (axes[i].size == 1) continue;
    name = concat(axes[i].name, " ", row % axes[i].size, name.empty() ? "" : ", ", name);
    row /= axes[i].size;
  }
  return name;
}

std::string layout_of(const Report& report) {
  std::vector<Report::Axis> rows;  // the axes that are split, outermost first; the innermost gives the columns
  for (const auto& axis : report.mesh) {
    if (axis.size > 1) rows.push_back(axis);
  }
  const Report::Axis columns = rows.empty() ? Report::Axis{"", 1} : rows.back();
  if (!rows.empty()) rows.pop_back();
  int64_t count = 1;
  for (const auto& axis : rows) count *= axis.size;
  std::string product;
  for (const auto& axis : report.mesh) product += concat(product.empty() ? "" : " x ", axis.name, " ", axis.size);
  const int64_t ranks = count * columns.size;
  std::string out = "<section class='card'><h2>Layout</h2><p>" + concat(ranks, ranks == 1 ? " rank" : " ranks") +
                    (product.empty() ? "" : ": " + html_text(product)) + "</p>";
  if (columns.size > kMostCells) return out + "</section>\n";
  out += "<div class='scroll'><table class='mesh'><tr><th></th>";
  for (int c = 0; c < columns.size && columns.size > 1; ++c)
    out += "<th>" + html_text(concat(columns.name, " ", c)) + "</th>";
  out += "</tr>";
  const int64_t shown = std::min(count, kMostCells / columns.size);
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

/// "rank 1 3.2, rank 3 0.5": whom a rank waited for, the longest first.
std::string waits_of(const std::vector<double>& waited) {
  std::vector<std::pair<double, size_t>> longest;
  for (size_t rank = 0; rank < waited.size(); ++rank)
    if (waited[rank] > 0) longest.emplace_back(waited[rank], rank);
  std::sort(longest.rbegin(), longest.rend());
  std::string out;
  for (const auto& [time, rank] : longest) out += concat(out.empty() ? "rank " : ", rank ", rank, " ", tenths(time));
  return out.empty() ? "nobody" : out;
}

std::string timeline_of(const PipelineTimeline& timeline) {
  const schedule::Timeline &planned = timeline.planned, &measured = timeline.measured;
  std::string out =
      "<section class='card'><h2>Pipeline</h2><p>The last step as planned, had each rank taken for each kind of step "
      "the time it took "
      "on average and messages none, and as measured. Times are milliseconds. pipeline_trace.json in the run folder "
      "holds the same for "
      "Perfetto.</p><div class='scroll'>" +
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
         ". Waiting counts from a rank's first step to the end of its last; what is not for another rank is its own, "
         "between steps.</p></section>\n";
}

std::string facts_of(const Report& report) {
  char when[64] = "";
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  if (::gmtime_r(&now, &utc) != nullptr) std::strftime(when, sizeof(when), "%Y-%m-%d %H:%M UTC", &utc);
  std::string out = "<section class='card'><h2>Run</h2><table class='facts'>";
  const auto row = [&](const std::string& name, const std::string& value) {
    out += "<tr><th>" + html_text(name) + "</th><td>" + html_text(value) + "</td></tr>";
  };
  for (const auto& [name, value] : report.facts) row(name, value);
  row("report written", when);
  row("colossal", version());
  return out + "</table></section>\n";
}

/// TOML with headers and keys told apart, a block a table. Our own printer writes no value over several lines.
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

}  // namespace

std::string render_report(const Report& report) {
  std::string out = tiles_of(report.steps);
  if (!report.steps.empty()) {
    out += "<section class='plots'>";
    for (const auto& plot : plots_of(report.steps)) out += render_plot(plot);
    out += "</section>\n";
  }
  if (report.timeline) out += timeline_of(*report.timeline);
  if (!report.sample.empty()) {
    out += "<section class='card'><h2>Sample</h2><pre class='sample'><mark>" + html_text(report.prompt) + "</mark>" +
           html_text(report.sample) + "</pre></section>\n";
  }
  out += "<section class='pair'>" + layout_of(report) + facts_of(report) + "</section>\n";
  if (!report.config.empty()) {
    out += "<section class='card'><h2>Configuration</h2><pre class='config'>" + config_of(report.config) +
           "</pre></section>\n";
  }
  return render_page("Training run", report.title, out);
}

}  // namespace colossal::report
