#include "colossal/report/metrics.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string_view>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"

namespace colossal::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxMetricsBytes = int64_t{4} << 30;  // bytes; about 15 million steps

Json to_json_number(const Metric::Value& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return *integer;
  const double number = std::get<double>(value);
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  return number;
}

double from_json_number(const Json& value) {
  if (value.is_number()) return value.get<double>();
  const std::string text = value.get<std::string>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  throw std::invalid_argument("`" + text + "` is not a number");
}

/// Adds the numbers of an object to `values`. Members of a nested object are named "object.member".
void read_members(const Json& object, const std::string& prefix, RecordedSteps::Values& values) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_object()) {
      read_members(value, prefix + name + ".", values);
    } else if (!prefix.empty() || name != "step") {
      values.emplace_back(prefix + name, from_json_number(value));
    }
  }
}

struct MetricsLine {
  int64_t step = 0;
  RecordedSteps::Values values;
};

MetricsLine parse_line(std::string_view text) {
  const Json object = parse_ordered_json(text, "JSON", "metrics");
  if (!object.is_object()) throw std::invalid_argument("it is no JSON object");
  if (!object.at("step").is_number_integer()) throw std::invalid_argument("`step` is not an integer");
  MetricsLine line{object.at("step").get<int64_t>(), {}};
  read_members(object, "", line.values);
  return line;
}

/// Calls `use` with the text and the contents of each line. Text after the last line end was cut short by a kill.
template <class Use>
void each_line(std::string_view text, const std::string& path, const Use& use) {
  size_t begin = 0;
  for (int64_t number = 1;; ++number) {
    const size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) return;
    const std::string_view line = text.substr(begin, end - begin);
    try {
      use(line, parse_line(line));
    } catch (const std::exception& error) {
      throw Error("metrics", concat(path, ":", number, ": not a line of metrics (", error.what(),
                                    "); remove the line or the file"));
    }
    begin = end + 1;
  }
}

/// Returns the line at `begin` and moves `begin` after it. The last line may have no line end.
std::string_view next_line(std::string_view text, size_t& begin) {
  const size_t end = std::min(text.find('\n', begin), text.size());
  const std::string_view line = text.substr(begin, end - begin);
  begin = end + 1;
  return line;
}

std::string regular_file(const std::string& path) {
  require(!std::filesystem::exists(path) || std::filesystem::is_regular_file(path), "metrics", path,
          " must be a regular file");
  return read_file(path, kMaxMetricsBytes);
}

/// Removes lines of steps after `last` and an incomplete last line from the file, and returns `path`. Does not change
/// the file if `last` has no value or there is no file.
std::string without_later_steps(const std::string& path, std::optional<int64_t> last) {
  if (!last || !std::filesystem::exists(path)) return path;
  std::string kept;
  each_line(regular_file(path), path, [&](std::string_view text, const MetricsLine& line) {
    if (line.step <= *last) kept.append(text).append("\n");
  });
  write_file(path, kept);
  return path;
}

MetricNames names_before(const std::string& path, bool resumes) {
  if (!resumes || !std::filesystem::exists(path)) return {};
  try {
    return read_metric_names(path);
  } catch (const Error&) {
    return {};  // the names of the next step replace a file that cannot be read
  }
}

}  // namespace

std::string to_json_line(const StepMetrics& metrics) {
  Json object = {{"step", metrics.step()}};
  for (const Metric& row : metrics.rows()) {
    Json* holder = &object;
    size_t begin = 0;
    for (size_t dot; (dot = row.name.find('.', begin)) != std::string::npos; begin = dot + 1)
      holder = &(*holder)[row.name.substr(begin, dot - begin)];
    (*holder)[row.name.substr(begin)] = to_json_number(row.value);
  }
  return object.dump();
}

MetricsWriter::MetricsWriter(const std::string& lines, std::string names, std::optional<int64_t> resumed_after)
    : file_(without_later_steps(lines, resumed_after), "metrics", !resumed_after),
      names_path_(std::move(names)),
      names_(names_before(names_path_, resumed_after.has_value())) {}

void MetricsWriter::write(const StepMetrics& metrics) {
  for (const Metric& row : metrics.rows())
    has_new_names_ |= names_.try_emplace(row.name, MetricEntry{row.unit, row.plot, row.legend}).second;
  file_.add(to_json_line(metrics) + "\n");
  file_.flush();
  if (!has_new_names_) return;
  write_file(names_path_, to_json(names_));
  has_new_names_ = false;
}

RecordedSteps salvage_metrics(const std::string& path, DamagedLines& damaged) {
  const std::string text = read_file(path, kMaxMetricsBytes);
  RecordedSteps steps;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const std::string_view line = next_line(text, begin);
    ++number;
    if (line.empty()) continue;
    try {
      const MetricsLine read = parse_line(line);
      while (!steps.empty() && steps.numbers().back() >= read.step) steps.remove_last();
      steps.add(read.step, read.values);
    } catch (const std::exception&) {
      if (damaged.count++ == 0) damaged.first = number;
    }
  }
  return steps;
}

RecordedSteps read_metrics(const std::string& path) {
  RecordedSteps steps;
  each_line(regular_file(path), path,
            [&](std::string_view, const MetricsLine& line) { steps.add(line.step, line.values); });
  return steps;
}

}  // namespace colossal::report
