#include "colossal/report/charts.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/number.h"
#include "colossal/report/plot.h"

namespace colossal::report {
namespace {

/// A chart with the plot name of its metrics' rows, to which the title adds a unit.
struct NamedChart {
  std::string plot;
  Chart chart;
  std::vector<std::string> first = {};  // metrics that it draws first, whatever plot their rows name
};

NamedChart own_chart(const std::string& plot, const std::string& unit, bool from_zero, bool smooth, bool log,
                     const std::vector<std::string>& first = {}) {
  return {plot, {.title = plot, .unit = unit, .from_zero = from_zero, .smooth = smooth, .log = log}, first};
}

// The library's own charts, in the order of the page, with the properties that do not follow from a unit. An evaluation
// loss has a second chart of its own, because the training loss would hide its small changes. The total memory of a
// device is drawn before its parts.
std::vector<NamedChart> own_charts() {
  return {
      own_chart("Loss", "number", false, true, true),
      own_chart("Evaluation loss", "number", false, false, true, {"eval_loss"}),
      own_chart("Held-out accuracy", "share", true, false, false),
      own_chart("Learning rate", "number", true, false, true),
      own_chart("Gradient norm", "number", true, true, true),
      own_chart("Tokens per second", "number", true, true, true),
      own_chart("Share of the peak", "share", true, true, false),
      own_chart("Step time", "seconds", true, true, true),
      own_chart("Peak memory of a rank", "bytes", true, false, true),
      own_chart("Parameters, gradients and states", "bytes", true, false, true),
      own_chart("Moved in a step", "bytes", true, false, true),
      own_chart("Largest device of a rank", "bytes", true, false, true, {"tiers.device_peak_bytes"}),
      own_chart("Copied in a step", "bytes", true, false, true),
  };
}

NamedChart chart_of(const MetricEntry& entry) {
  const auto& unit = entry.unit;
  if (unit == "bytes") return own_chart(entry.plot, "bytes", true, true, true);
  if (unit == "s") return own_chart(entry.plot, "seconds", true, true, true);
  if (unit == "share") return own_chart(entry.plot, "share", true, true, false);
  NamedChart chart = own_chart(entry.plot, "number", false, true, true);
  if (!unit.empty()) chart.chart.title = concat(entry.plot, " (", unit, ")");
  return chart;
}

void draw_in(Chart& chart, const std::string& name, const MetricEntry& entry) {
  const bool is_there =
      std::any_of(chart.lines.begin(), chart.lines.end(), [&](auto& line) { return line.name == name; });
  if (!is_there) chart.lines.push_back({name, entry.legend.empty() ? name : entry.legend});
}

using ChartJson = nlohmann::ordered_json;

constexpr size_t kSeriesPoints = 1000;  // maximum number of points per metric
constexpr size_t kRankPoints = 24000;   // maximum number of points of all ranks in a chart
constexpr size_t kDrawnRanks = 64;      // maximum number of ranks with a curve each
constexpr size_t kMeans = 500;

/// Returns a value as the page stores it: with six digits, or as a text if it is not finite.
ChartJson chart_number(double value) {
  if (!std::isfinite(value)) return short_number(value);
  return std::strtod(text_of(value, 6).c_str(), nullptr);
}

/// The rows of a run that its series use. Points refer to steps by index until number() assigns row numbers.
class ChartRows {
 public:
  explicit ChartRows(const RecordedSteps& steps) : steps_(steps), rows_(steps.size(), -1) {}

  void use(size_t step) { rows_[step] = 0; }
  /// Numbers the rows in use and returns {"step", "time", "tokens"}. Time and tokens are sums over all steps so far.
  ChartJson number() {
    ChartJson step = ChartJson::array(), time = ChartJson::array(), tokens = ChartJson::array();
    const std::vector<double> step_seconds = steps_.values("seconds", 0), step_tokens = steps_.values("tokens", 0);
    double seconds = 0, seen = 0;
    int64_t count = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      seconds += std::isfinite(step_seconds[i]) && step_seconds[i] > 0 ? step_seconds[i] : 0;
      seen += std::isfinite(step_tokens[i]) ? step_tokens[i] : 0;
      if (rows_[i] < 0) continue;
      rows_[i] = count++;
      step.push_back(steps_.numbers()[i]);
      time.push_back(std::round(seconds * 1000) / 1000);
      tokens.push_back(seen);
    }
    return {{"step", step}, {"time", time}, {"tokens", tokens}};
  }
  int64_t row(size_t step) const { return rows_[step]; }

 private:
  const RecordedSteps& steps_;
  std::vector<int64_t> rows_;
};

/// The points of one curve; x is the index of the step in the run.
struct ChartSeries {
  Series points;
  int64_t bad = 0;  // number of values in the whole series that are not finite
  std::optional<Series> means = {};
  std::vector<int64_t> counts = {};  // number of values in each mean
};

void add_means(ChartSeries& out, const Series& all) {
  out.means.emplace();
  const size_t count = all.x.size();
  for (size_t bucket = 0; bucket < kMeans; ++bucket) {
    const size_t begin = bucket * count / kMeans, end = (bucket + 1) * count / kMeans;
    double sum = 0;
    int64_t finite = 0;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(all.y[i])) continue;
      sum += all.y[i];
      ++finite;
    }
    if (finite == 0) continue;
    out.means->x.push_back(all.x[begin + (end - begin) / 2]);
    out.means->y.push_back(sum / static_cast<double>(finite));
    out.counts.push_back(finite);
  }
}

ChartSeries chart_series(const Series& all, size_t max_points, bool smooth, ChartRows& rows) {
  ChartSeries out{.points = thin(all, max_points)};
  out.bad = std::count_if(all.y.begin(), all.y.end(), [](double y) { return !std::isfinite(y); });
  if (smooth && all.x.size() > max_points) add_means(out, all);
  for (const double step : out.points.x) rows.use(static_cast<size_t>(step));
  if (out.means)
    for (const double step : out.means->x) rows.use(static_cast<size_t>(step));
  return out;
}

ChartJson json_of(const Series& series, const ChartRows& rows) {
  ChartJson i = ChartJson::array(), y = ChartJson::array();
  for (const double step : series.x) i.push_back(rows.row(static_cast<size_t>(step)));
  for (const double value : series.y) y.push_back(chart_number(value));
  return {{"i", i}, {"y", y}};
}

ChartJson json_of(const ChartSeries& series, const ChartRows& rows) {
  ChartJson out = json_of(series.points, rows);
  if (series.bad > 0) out["bad"] = series.bad;
  if (!series.means) return out;
  out["s"] = json_of(*series.means, rows);
  out["s"]["n"] = series.counts;
  return out;
}

/// Returns the values of a metric for the steps that have one; x is the index of the step in the run.
Series values_of(const RecordedSteps& steps, const std::string& name) {
  Series series;
  if (const MetricColumn* column = steps.find(name)) {
    series.x.assign(column->at.begin(), column->at.end());
    series.y = column->values;
  }
  return series;
}

/// Returns the curves of one measurement of the ranks: one per rank, or the lowest, median and highest value.
template <class Number>
std::vector<ChartSeries> rank_series(const RecordedRun& run, std::vector<Number> RankMetrics::* member, size_t ranks,
                                     ChartRows& rows) {
  const bool each = ranks <= kDrawnRanks;
  const std::vector<int64_t>& numbers = run.steps.numbers();
  std::vector<Series> all(each ? ranks : 3);
  for (const RankMetrics& record : run.ranks) {
    const auto at = std::lower_bound(numbers.begin(), numbers.end(), record.step);
    if (at == numbers.end() || *at != record.step) continue;
    std::vector<double> values((record.*member).begin(), (record.*member).end());
    if (values.empty()) continue;
    if (!each) {
      std::sort(values.begin(), values.end());
      values = {values.front(), values[values.size() / 2], values.back()};
    }
    for (size_t i = 0; i < std::min(all.size(), values.size()); ++i) {
      all[i].x.push_back(static_cast<double>(at - numbers.begin()));
      all[i].y.push_back(values[i]);
    }
  }
  const size_t max_points = std::clamp<size_t>(kRankPoints / all.size(), 200, kSeriesPoints);
  std::vector<ChartSeries> out;
  for (const Series& series : all) out.push_back(chart_series(series, max_points, true, rows));
  return out;
}

ChartJson run_data(const RecordedRun& run, const std::vector<Chart>& charts) {
  ChartRows rows(run.steps);
  std::vector<std::pair<std::string, ChartSeries>> series;
  for (const Chart& chart : charts) {
    for (const ChartLine& line : chart.lines) {
      const bool is_there = std::any_of(series.begin(), series.end(), [&](auto& s) { return s.first == line.name; });
      const Series all = is_there ? Series{} : values_of(run.steps, line.name);
      if (!all.x.empty()) series.emplace_back(line.name, chart_series(all, kSeriesPoints, chart.smooth, rows));
    }
  }
  size_t ranks = 0;
  for (const RankMetrics& record : run.ranks) ranks = std::max(ranks, record.seconds.size());
  std::vector<ChartSeries> seconds, peaks;
  if (ranks > 0) {
    seconds = rank_series(run, &RankMetrics::seconds, ranks, rows);
    peaks = rank_series(run, &RankMetrics::peak_bytes, ranks, rows);
  }
  ChartJson out = {{"name", run.name}, {"rows", rows.number()}, {"series", ChartJson::object()}};
  for (const auto& [key, points] : series) out["series"][key] = json_of(points, rows);
  if (ranks == 0) return out;
  ChartJson names = ChartJson::array();
  if (ranks > kDrawnRanks) names = {"lowest rank", "median rank", "highest rank"};
  for (size_t rank = 0; rank < ranks && ranks <= kDrawnRanks; ++rank) names.push_back(concat("rank ", rank));
  out["ranks"] = {{"names", names}, {"seconds", ChartJson::array()}, {"peak_bytes", ChartJson::array()}};
  for (const ChartSeries& s : seconds) out["ranks"]["seconds"].push_back(json_of(s, rows));
  for (const ChartSeries& s : peaks) out["ranks"]["peak_bytes"].push_back(json_of(s, rows));
  return out;
}

}  // namespace

std::vector<Chart> charts_of(const std::vector<RecordedRun>& runs) {
  std::vector<NamedChart> charts = own_charts();
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < charts.size(); ++i) places.emplace(charts[i].plot, i);
  std::vector<std::string> names;  // names in order of appearance
  std::map<std::string, MetricEntry> entries;
  for (const RecordedRun& run : runs)
    for (const MetricColumn& column : run.steps.columns())
      if (!column.at.empty() && entries.emplace(column.name, entry_of(run.names, column.name)).second)
        names.push_back(column.name);
  for (NamedChart& chart : charts)
    for (const std::string& name : chart.first)
      if (const auto entry = entries.find(name); entry != entries.end()) draw_in(chart.chart, name, entry->second);
  for (const std::string& name : names) {
    const MetricEntry& entry = entries.at(name);
    if (entry.plot.empty()) continue;
    const auto [place, is_new] = places.emplace(entry.plot, charts.size());
    if (is_new) charts.push_back(chart_of(entry));
    draw_in(charts[place->second].chart, name, entry);
  }
  std::vector<Chart> drawn;
  for (NamedChart& chart : charts)
    if (!chart.chart.lines.empty()) drawn.push_back(std::move(chart.chart));
  return drawn;
}

std::string chart_data(const std::vector<RecordedRun>& runs) {
  const std::vector<Chart> charts = charts_of(runs);
  ChartJson drawn = ChartJson::array(), all = ChartJson::array();
  for (const Chart& chart : charts) {
    ChartJson lines = ChartJson::array();
    for (const ChartLine& line : chart.lines) lines.push_back({{"key", line.name}, {"name", line.legend}});
    drawn.push_back({{"title", chart.title},
                     {"unit", chart.unit},
                     {"zero", chart.from_zero},
                     {"smooth", chart.smooth},
                     {"log", chart.log},
                     {"lines", lines}});
  }
  for (const RecordedRun& run : runs) all.push_back(run_data(run, charts));
  const std::string json =
      ChartJson({{"charts", drawn}, {"runs", all}}).dump(-1, ' ', true, ChartJson::error_handler_t::replace);
  std::string out = "<script type='application/json' id='data'>";
  for (const char c : json) c == '<' ? out += "\\u003c" : out += c;  // escaped, so that no text can close the element
  return out + "</script>\n";
}

}  // namespace colossal::report
