#include "colossal/report/recorded_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/run_folder.h"

namespace colossal::report {
namespace {

constexpr int64_t kMaxConfigBytes = 16 << 20;

/// Returns true if the file exists. Errors: it is not a regular file; a pipe, for instance, has no end.
bool is_there(const std::string& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (!std::filesystem::exists(status)) return false;
  require(std::filesystem::is_regular_file(status), "report", path,
          " must be a regular file; remove it, or name another run folder");
  return true;
}

std::string file_name(const std::string& path) { return std::filesystem::path(path).filename().string(); }

void note_damage(RecordedRun& run, const std::string& path, const DamagedLines& damaged) {
  if (damaged.count == 0) return;
  const char* which = damaged.count == 1 ? " line cannot be read (line " : " lines cannot be read (the first: line ";
  run.missing.push_back(
      concat(file_name(path), ": ", damaged.count, which, damaged.first, "); the other lines are shown"));
}

void read_steps(RecordedRun& run, const std::string& path) {
  if (!is_there(path)) {
    run.missing.push_back("metrics.jsonl is missing: the run recorded no step");
    return;
  }
  DamagedLines damaged;
  run.steps = salvage_metrics(path, damaged);
  note_damage(run, path, damaged);
}

void read_names(RecordedRun& run, const std::string& path) {
  if (!is_there(path)) return;  // a run of an older version, which has only the library's own metrics
  try {
    run.names = read_metric_names(path);
  } catch (const Error& error) {
    run.missing.push_back(concat("metrics.json cannot be read: ", error.message(), "; its plots have no units"));
  }
}

void read_records(RecordedRun& run, const RunFolder& folder) {
  if (is_there(folder.history())) {
    DamagedLines damaged;
    RunHistory history = read_history(folder.history(), damaged);
    run.starts = std::move(history.starts);
    run.samples = std::move(history.samples);
    note_damage(run, folder.history(), damaged);
  }
  if (run.starts.empty())
    run.missing.push_back("history.jsonl has no start: command line, version and layout are unknown");
  if (is_there(folder.ranks())) {
    DamagedLines damaged;
    run.ranks = read_rank_metrics(folder.ranks(), damaged);
    note_damage(run, folder.ranks(), damaged);
    // Drops steps that a resumed run has not repeated so far.
    while (!run.ranks.empty() && (run.steps.empty() || run.ranks.back().step > run.steps.numbers().back()))
      run.ranks.pop_back();
  } else {
    run.missing.push_back("ranks.jsonl is missing: step time and memory of each rank are unknown");
  }
}

void read_config_of(RecordedRun& run, const std::string& path) {
  if (!is_there(path)) {
    run.missing.push_back("config.toml is missing");
    return;
  }
  run.config = read_file(path, kMaxConfigBytes);
  try {
    ConfigDocument::parse(run.config, "config.toml");
  } catch (const Error& error) {
    run.missing.push_back(concat("config.toml cannot be read: ", error.message()));
  }
}

void read_prediction(RecordedRun& run, const std::string& path) {
  if (!is_there(path)) return;
  try {
    run.prediction = parse_predicted_step(read_file(path, kMaxConfigBytes));
  } catch (const Error& error) {
    run.missing.push_back(concat("prediction.json cannot be read: ", error.message()));
  }
}

/// Returns the values of a name; empty if no step has it.
std::vector<double> column_values(const RecordedSteps& steps, std::string_view name) {
  const MetricColumn* column = steps.find(name);
  return column ? column->values : std::vector<double>();
}

/// Returns the median of the finite values, without the first one, which includes the warm-up. A single value is
/// returned as it is; 0 if there is none.
double median(std::vector<double> values) {
  values.erase(std::remove_if(values.begin(), values.end(), [](double v) { return !std::isfinite(v); }), values.end());
  if (values.size() > 1) values.erase(values.begin());
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

RecordedRun read_run(const std::string& path) {
  const RunFolder folder(path);
  std::error_code ignored;
  require(std::filesystem::exists(path, ignored), "report", "there is no folder ", path, "; name the folder of a run");
  require(std::filesystem::is_directory(path, ignored), "report", path,
          " must be the folder of a run: got a file; name its folder");
  require(std::filesystem::exists(folder.config(), ignored) || std::filesystem::exists(folder.metrics(), ignored),
          "report", path,
          " must be the folder of a run: it holds neither config.toml nor metrics.jsonl; name the "
          "run.folder of the training");
  RecordedRun run;
  run.name = path;
  read_config_of(run, folder.config());
  read_steps(run, folder.metrics());
  read_names(run, folder.metric_names());
  read_records(run, folder);
  read_prediction(run, folder.prediction());
  return run;
}

RunSummary summarize(const RecordedSteps& steps) {
  RunSummary summary;
  if (steps.empty()) return summary;
  for (const double tokens : column_values(steps, "tokens")) summary.tokens += tokens;
  for (const double seconds : column_values(steps, "seconds"))
    summary.seconds += std::isfinite(seconds) && seconds > 0 ? seconds : 0;
  for (const double bytes : column_values(steps, "peak_bytes"))
    if (bytes > static_cast<double>(summary.peak_bytes) && bytes < 1e18)
      summary.peak_bytes = static_cast<int64_t>(bytes);
  const size_t last = steps.size() - 1;
  if (const MetricColumn* evaluated = steps.find("eval_loss"); evaluated && !evaluated->at.empty()) {
    summary.eval_loss = evaluated->values.back();
    summary.perplexity = steps.value("perplexity", evaluated->at.back());
    summary.accuracy = steps.value("accuracy", evaluated->at.back());
  }
  summary.steps = steps.numbers().back();
  summary.first_loss = steps.value("loss", 0);
  summary.loss = steps.value("loss", last);
  summary.tokens_per_second = median(column_values(steps, "tokens_per_second"));
  if (steps.value("mfu", last)) summary.mfu = median(column_values(steps, "mfu"));
  return summary;
}

std::string layout_text(const std::vector<MeshAxis>& mesh) {
  double ranks = 1;
  std::string axes;
  for (const MeshAxis& axis : mesh) {
    ranks *= axis.size;
    if (axis.size > 1) axes += concat(axes.empty() ? ": " : " x ", axis.name, " ", axis.size);
  }
  return concat(ranks, ranks == 1 ? " rank" : " ranks", axes);
}

}  // namespace colossal::report
