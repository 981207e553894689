#include "colossal/report/step_metrics.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "colossal/base/error.h"
#include "colossal/base/known_metrics.h"
#include "colossal/report/metric_format.h"

namespace colossal::report {
namespace {

constexpr size_t kMaxNameBytes = 200;
constexpr std::array<std::string_view, 2> kFirstOnTheLine{"loss", "tokens_per_second"};

void check_name(const std::string& name) {
  const std::string_view allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  const bool is_plain = name.find_first_not_of(allowed) == std::string::npos && name.size() <= kMaxNameBytes;
  const bool has_parts = !name.empty() && name.front() != '.' && name.back() != '.' && name.find("..") == name.npos;
  require(is_plain && has_parts, "metrics", "the name of a metric must be letters, digits, _ and - with dots between, ",
          kMaxNameBytes, " at most: got `", name, "`; rename it");
}

bool has_the_same_description(Metric a, Metric b) {
  a.value = b.value = int64_t{0};  // NaN is not equal to itself
  return a == b;
}

/// Returns the prefixes of `name` before each dot: "a" and "a.b" for "a.b.c".
std::vector<std::string> objects_of(const std::string& name) {
  std::vector<std::string> objects;
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
    objects.push_back(name.substr(0, dot));
  return objects;
}

Metric::Value sum(const Metric::Value& a, const Metric::Value& b) {
  const auto *x = std::get_if<int64_t>(&a), *y = std::get_if<int64_t>(&b);
  if (x && y) return *x + *y;
  return number_of({.name = "", .value = a}) + number_of({.name = "", .value = b});
}

}  // namespace

void StepMetrics::add(Metric metric) {
  check_name(metric.name);
  check_format(metric);
  // The names of library rows that only some steps have, such as stall_seconds, are reserved on all steps. A clash is
  // therefore reported at the first step, not hours later on the one rank that has a stall.
  const std::optional<Metric> known = find_known_metric(metric.name);
  const bool is_reserved = metric.name == "step" || (known && !has_the_same_description(*known, metric));
  require(!is_reserved && !names_.contains(metric.name) && !objects_.contains(metric.name), "metrics",
          "the name of a metric must be new: `", metric.name,
          "` is taken by another row of the step or by the library; choose another name");
  for (std::string& object : objects_of(metric.name)) {
    require(object != "step" && !names_.contains(object), "metrics", "the name of a metric must be new: `", object,
            "` in `", metric.name, "` is taken by a metric that is a number; choose another name");
    objects_.insert(std::move(object));
  }
  names_.insert(metric.name);
  rows_.push_back(std::move(metric));
}

void StepMetrics::add(std::vector<Metric> metrics) {
  for (Metric& metric : metrics) add(std::move(metric));
}

std::string progress_line(const StepMetrics& metrics) {
  std::vector<Metric> shown;
  const auto show = [&](const Metric& row) {
    const auto same = std::find_if(shown.begin(), shown.end(), [&](const Metric& m) { return m.line == row.line; });
    if (same == shown.end()) {
      shown.push_back(row);
    } else {
      same->value = sum(same->value, row.value);
    }
  };
  const auto is_first = [](const Metric& row) {
    return std::find(kFirstOnTheLine.begin(), kFirstOnTheLine.end(), row.name) != kFirstOnTheLine.end();
  };
  for (const bool first : {true, false})
    for (const Metric& row : metrics.rows())
      if (!row.line.empty() && is_first(row) == first) show(row);
  std::string line;
  for (const Metric& row : shown) line += concat(line.empty() ? "" : "  ", formatted(row));
  return line;
}

}  // namespace colossal::report
