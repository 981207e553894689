#include "colossal/report/metrics.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json_file.h"

namespace colossal::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kLargestFile = int64_t{4} << 30;  // about 15 million steps

Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

double number_of(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  const std::string text = value.get<std::string>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  throw std::invalid_argument("`" + text + "` is not a number");
}

StepMetrics parse_line(std::string_view line) {
  const nlohmann::json object = parse_json_object(line, "JSON", "metrics");
  StepMetrics metrics;
  metrics.step = object.at("step").get<int64_t>();
  metrics.loss = number_of(object.at("loss"));
  metrics.learning_rate = number_of(object.at("learning_rate"));
  metrics.grad_norm = number_of(object.at("grad_norm"));
  metrics.tokens = object.at("tokens").get<int64_t>();
  metrics.tokens_per_second = number_of(object.at("tokens_per_second"));
  if (object.contains("mfu")) metrics.mfu = number_of(object.at("mfu"));
  metrics.peak_bytes = object.at("peak_bytes").get<int64_t>();
  metrics.seconds = number_of(object.at("seconds"));
  if (object.contains("tiers")) {
    const nlohmann::json& tiers = object.at("tiers");
    const auto bytes = [&](const char* name) { return tiers.at(name).get<int64_t>(); };
    metrics.tiers = {bytes("host_bytes"), bytes("disk_bytes"), bytes("bytes_read"), bytes("bytes_written")};
    if (tiers.contains("device_model_bytes"))
      metrics.tiers->device = {bytes("device_model_bytes"), bytes("device_peak_bytes"), bytes("device_bytes_in"),
                               bytes("device_bytes_out")};
  }
  if (object.contains("stall_seconds")) metrics.stall_seconds = number_of(object.at("stall_seconds"));
  if (object.contains("eval_loss")) metrics.eval_loss = number_of(object.at("eval_loss"));
  if (object.contains("perplexity")) metrics.perplexity = number_of(object.at("perplexity"));
  if (object.contains("accuracy")) metrics.accuracy = number_of(object.at("accuracy"));
  return metrics;
}

std::vector<StepMetrics> parse_lines(const std::string& text, const std::string& path) {
  std::vector<StepMetrics> steps;
  size_t begin = 0;
  for (int64_t line = 1;; ++line) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) return steps;  // what follows the last end of line was cut short by a kill
    try {
      steps.push_back(parse_line(std::string_view(text).substr(begin, end - begin)));
    } catch (const std::exception& error) {
      throw Error("metrics",
                  concat(path, ":", line, ": not a line of metrics (", error.what(), "); remove the line or the file"));
    }
    begin = end + 1;
  }
}

/// The line that begins at `begin`, which is moved behind it; a last one without its end too.
std::string_view next_line(std::string_view text, size_t& begin) {
  const size_t end = std::min(text.find('\n', begin), text.size());
  const std::string_view line = text.substr(begin, end - begin);
  begin = end + 1;
  return line;
}

/// `path`, when lines of later steps than `last` and one cut short are dropped from it; without `last` or a file
/// nothing is done.
std::string without_later_steps(const std::string& path, std::optional<int64_t> last) {
  if (!last || !std::filesystem::exists(path)) return path;
  std::string kept;
  for (const auto& metrics : read_metrics(path)) {
    if (metrics.step <= *last) kept += to_json_line(metrics) + "\n";
  }
  write_file(path, kept);
  return path;
}

}  // namespace

std::string to_json_line(const StepMetrics& metrics) {
  Json object = {{"step", metrics.step},
                 {"loss", number(metrics.loss)},
                 {"learning_rate", number(metrics.learning_rate)},
                 {"grad_norm", number(metrics.grad_norm)},
                 {"tokens", metrics.tokens},
                 {"tokens_per_second", number(metrics.tokens_per_second)}};
  if (metrics.mfu) object["mfu"] = number(*metrics.mfu);
  object["peak_bytes"] = metrics.peak_bytes;
  object["seconds"] = number(metrics.seconds);
  if (const auto& tiers = metrics.tiers)
    object["tiers"] = {{"host_bytes", tiers->host_bytes},
                       {"disk_bytes", tiers->disk_bytes},
                       {"bytes_read", tiers->bytes_read},
                       {"bytes_written", tiers->bytes_written}};
  if (metrics.tiers && metrics.tiers->device) {
    const DeviceMetrics& device = *metrics.tiers->device;
    object["tiers"].update({{"device_model_bytes", device.model_bytes},
                            {"device_peak_bytes", device.peak_bytes},
                            {"device_bytes_in", device.bytes_in},
                            {"device_bytes_out", device.bytes_out}});
  }
  if (metrics.stall_seconds) object["stall_seconds"] = number(*metrics.stall_seconds);
  if (metrics.eval_loss) object["eval_loss"] = number(*metrics.eval_loss);
  if (metrics.perplexity) object["perplexity"] = number(*metrics.perplexity);
  if (metrics.accuracy) object["accuracy"] = number(*metrics.accuracy);
  return object.dump();
}

MetricsWriter::MetricsWriter(const std::string& path, std::optional<int64_t> resumed_after)
    : file_(without_later_steps(path, resumed_after), "metrics", !resumed_after) {}

void MetricsWriter::write(const StepMetrics& metrics) {
  file_.add(to_json_line(metrics) + "\n");
  file_.flush();
}

std::vector<StepMetrics> salvage_metrics(const std::string& path, DamagedLines& damaged) {
  const std::string text = read_file(path, kLargestFile);
  std::vector<StepMetrics> steps;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const std::string_view line = next_line(text, begin);
    ++number;
    if (line.empty()) continue;
    try {
      const StepMetrics metrics = parse_line(line);
      while (!steps.empty() && steps.back().step >= metrics.step) steps.pop_back();
      steps.push_back(metrics);
    } catch (const std::exception&) {
      if (damaged.count++ == 0) damaged.first = number;
    }
  }
  return steps;
}

std::vector<StepMetrics> read_metrics(const std::string& path) {
  require(!std::filesystem::exists(path) || std::filesystem::is_regular_file(path), "metrics", path,
          " must be a regular file");
  return parse_lines(read_file(path, kLargestFile), path);
}

}  // namespace colossal::report
