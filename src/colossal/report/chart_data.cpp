#include "colossal/report/chart_data.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/report/plot.h"

namespace colossal::report {
namespace {

using ChartJson = nlohmann::ordered_json;

constexpr size_t kSeriesPoints = 1000;  // of a metric at most
constexpr size_t kRankPoints = 24000;   // of all ranks of a chart together
constexpr size_t kDrawnRanks = 64;      // one curve each
constexpr size_t kMeans = 500;

using StepValue = std::function<std::optional<double>(const StepMetrics&)>;

struct ChartLine {
  const char* key;
  const char* name;
  StepValue value;
};

struct Chart {
  const char* title;
  const char* unit;  // "number", "bytes", "seconds" or "share"
  bool from_zero = false, smooth = false, log = true;
  std::vector<ChartLine> lines;
};

template <class Number>
StepValue step_value(Number StepMetrics::* member) {
  return [member](const StepMetrics& m) -> std::optional<double> {
    const std::optional<Number> value = m.*member;
    return value ? std::optional<double>(static_cast<double>(*value)) : std::nullopt;
  };
}

StepValue step_value(std::optional<double> StepMetrics::* member) {
  return [member](const StepMetrics& m) { return m.*member; };
}

StepValue tier_value(int64_t TierMetrics::* member) {
  return [member](const StepMetrics& m) -> std::optional<double> {
    return m.tiers ? std::optional<double>(static_cast<double>((*m.tiers).*member)) : std::nullopt;
  };
}

StepValue device_value(int64_t DeviceMetrics::* member) {
  return [member](const StepMetrics& m) -> std::optional<double> {
    if (!m.tiers || !m.tiers->device) return std::nullopt;
    return static_cast<double>((*m.tiers->device).*member);
  };
}

std::vector<Chart> all_charts() {
  const ChartLine evaluation{"eval_loss", "evaluation loss", step_value(&StepMetrics::eval_loss)};
  return {
      {"Loss", "number", false, true, true,
       {{"loss", "training loss", step_value(&StepMetrics::loss)}, evaluation}},
      {"Evaluation loss", "number", false, false, true, {evaluation}},
      {"Held-out accuracy", "share", true, false, false,
       {{"accuracy", "held-out accuracy", step_value(&StepMetrics::accuracy)}}},
      {"Learning rate", "number", true, false, true,
       {{"learning_rate", "learning rate", step_value(&StepMetrics::learning_rate)}}},
      {"Gradient norm", "number", true, true, true,
       {{"grad_norm", "gradient norm", step_value(&StepMetrics::grad_norm)}}},
      {"Tokens per second", "number", true, true, true,
       {{"tokens_per_second", "tokens per second", step_value(&StepMetrics::tokens_per_second)}}},
      {"Share of the peak", "share", true, true, false, {{"mfu", "model FLOPs", step_value(&StepMetrics::mfu)}}},
      {"Step time", "seconds", true, true, true, {{"seconds", "step time", step_value(&StepMetrics::seconds)}}},
      {"Peak memory of a rank", "bytes", true, false, true,
       {{"peak_bytes", "peak memory", step_value(&StepMetrics::peak_bytes)}}},
      {"Parameters, gradients and states", "bytes", true, false, true,
       {{"host_bytes", "host memory", tier_value(&TierMetrics::host_bytes)},
        {"disk_bytes", "disk alone", tier_value(&TierMetrics::disk_bytes)}}},
      {"Moved in a step", "bytes", true, false, true,
       {{"bytes_read", "read from the disk", tier_value(&TierMetrics::bytes_read)},
        {"bytes_written", "written to the disk", tier_value(&TierMetrics::bytes_written)}}},
      {"Largest device of a rank", "bytes", true, false, true,
       {{"device_peak", "all", device_value(&DeviceMetrics::peak_bytes)},
        {"device_model", "parameters and states", device_value(&DeviceMetrics::model_bytes)}}},
      {"Copied in a step", "bytes", true, false, true,
       {{"bytes_in", "to devices", device_value(&DeviceMetrics::bytes_in)},
        {"bytes_out", "from devices", device_value(&DeviceMetrics::bytes_out)}}},
  };
}

/// A value as the page has it: six digits, or a text if it is not finite.
ChartJson chart_number(double value) {
  if (!std::isfinite(value)) return short_number(value);
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return std::strtod(text, nullptr);
}

/// The rows of a run that its series use. Points refer to steps by their index until number() gives them their rows.
class ChartRows {
 public:
  explicit ChartRows(const std::vector<StepMetrics>& steps) : steps_(steps), rows_(steps.size(), -1) {}

  void use(size_t step) { rows_[step] = 0; }
  /// Numbers the rows in use, and returns {"step", "time", "tokens"}: time and tokens are sums over the steps so far.
  ChartJson number() {
    ChartJson step = ChartJson::array(), time = ChartJson::array(), tokens = ChartJson::array();
    double seconds = 0, seen = 0;
    int64_t count = 0;
    for (size_t i = 0; i < steps_.size(); ++i) {
      seconds += std::isfinite(steps_[i].seconds) && steps_[i].seconds > 0 ? steps_[i].seconds : 0;
      seen += static_cast<double>(steps_[i].tokens);
      if (rows_[i] < 0) continue;
      rows_[i] = count++;
      step.push_back(steps_[i].step);
      time.push_back(std::round(seconds * 1000) / 1000);
      tokens.push_back(seen);
    }
    return {{"step", step}, {"time", time}, {"tokens", tokens}};
  }
  int64_t row(size_t step) const { return rows_[step]; }

 private:
  const std::vector<StepMetrics>& steps_;
  std::vector<int64_t> rows_;
};

/// Points of one curve; x counts the steps of the run.
struct ChartSeries {
  Series points;
  int64_t bad = 0;  // values of the whole series that are not finite
  std::optional<Series> means = {};
  std::vector<int64_t> counts = {};  // of the means
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

ChartSeries chart_series(const Series& all, size_t most, bool smooth, ChartRows& rows) {
  ChartSeries out{.points = thin(all, most)};
  out.bad = std::count_if(all.y.begin(), all.y.end(), [](double y) { return !std::isfinite(y); });
  if (smooth && all.x.size() > most) add_means(out, all);
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

Series values_of(const std::vector<StepMetrics>& steps, const StepValue& value) {
  Series series;
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::optional<double> y = value(steps[i]);
    if (!y) continue;
    series.x.push_back(static_cast<double>(i));
    series.y.push_back(*y);
  }
  return series;
}

/// The curves of one measurement of the ranks: that of each rank, or of the lowest, median and highest.
template <class Number>
std::vector<ChartSeries> rank_series(const RecordedRun& run, std::vector<Number> RankMetrics::* member, size_t ranks,
                                     ChartRows& rows) {
  const bool each = ranks <= kDrawnRanks;
  std::vector<Series> all(each ? ranks : 3);
  for (const RankMetrics& record : run.ranks) {
    const auto at = std::lower_bound(run.steps.begin(), run.steps.end(), record.step,
                                     [](const StepMetrics& m, int64_t step) { return m.step < step; });
    if (at == run.steps.end() || at->step != record.step) continue;
    std::vector<double> values((record.*member).begin(), (record.*member).end());
    if (values.empty()) continue;
    if (!each) {
      std::sort(values.begin(), values.end());
      values = {values.front(), values[values.size() / 2], values.back()};
    }
    for (size_t i = 0; i < std::min(all.size(), values.size()); ++i) {
      all[i].x.push_back(static_cast<double>(at - run.steps.begin()));
      all[i].y.push_back(values[i]);
    }
  }
  const size_t most = std::clamp<size_t>(kRankPoints / all.size(), 200, kSeriesPoints);
  std::vector<ChartSeries> out;
  for (const Series& series : all) out.push_back(chart_series(series, most, true, rows));
  return out;
}

ChartJson run_data(const RecordedRun& run) {
  ChartRows rows(run.steps);
  std::vector<std::pair<std::string, ChartSeries>> series;
  for (const Chart& chart : all_charts()) {
    for (const ChartLine& line : chart.lines) {
      const bool is_there = std::any_of(series.begin(), series.end(), [&](auto& s) { return s.first == line.key; });
      const Series all = is_there ? Series{} : values_of(run.steps, line.value);
      if (!all.x.empty()) series.emplace_back(line.key, chart_series(all, kSeriesPoints, chart.smooth, rows));
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

std::string chart_data(const std::vector<RecordedRun>& runs) {
  ChartJson charts = ChartJson::array(), all = ChartJson::array();
  for (const Chart& chart : all_charts()) {
    ChartJson lines = ChartJson::array();
    for (const ChartLine& line : chart.lines) lines.push_back({{"key", line.key}, {"name", line.name}});
    charts.push_back({{"title", chart.title},
                      {"unit", chart.unit},
                      {"zero", chart.from_zero},
                      {"smooth", chart.smooth},
                      {"log", chart.log},
                      {"lines", lines}});
  }
  for (const RecordedRun& run : runs) all.push_back(run_data(run));
  const std::string json =
      ChartJson({{"charts", charts}, {"runs", all}}).dump(-1, ' ', true, ChartJson::error_handler_t::replace);
  std::string out = "<script type='application/json' id='data'>";
  for (const char c : json) c == '<' ? out += "\\u003c" : out += c;  // no text can end the element
  return out + "</script>\n";
}

}  // namespace colossal::report
