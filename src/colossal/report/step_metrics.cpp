#include "colossal/report/step_metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string_view>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/known_metrics.h"
#include "colossal/base/progress.h"

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

/// A format, split at its conversion.
struct Format {
  std::string before, conversion, after;  // "loss ", "%.4f", ""
  bool has_percent = false;               // true if the text has "%%"
  char kind() const { return conversion.back(); }
};

/// Returns the conversion at the start of `text`, which is a `%`; empty if it is not supported. Widths and precisions
/// have at most two digits, so that a format cannot request megabytes.
std::string_view conversion_at(std::string_view text) {
  const std::string_view digits = "0123456789";
  const auto skip = [&](size_t from, std::string_view set) {
    return std::min(text.find_first_not_of(set, from), text.size());
  };
  const size_t flags = skip(1, "-+ #0"), width = skip(flags, digits);
  const bool has_precision = width < text.size() && text[width] == '.';
  const size_t precision = has_precision ? skip(width + 1, digits) : width;
  if (flags > 3 || width - flags > 2 || precision - width > 3 || precision == text.size()) return {};
  if (std::string_view("eEfFgGd").find(text[precision]) != std::string_view::npos) return text.substr(0, precision + 1);
  return text.substr(0, 2) == "%s" ? text.substr(0, 2) : std::string_view();
}

/// Parses a format. No value if `line` has no conversion, several, or one that metrics do not support.
std::optional<Format> parse(std::string_view line) {
  Format format;
  for (size_t at = 0; at < line.size();) {
    std::string& text = format.conversion.empty() ? format.before : format.after;
    if (line[at] != '%') {
      text += line[at++];
    } else if (line.substr(at, 2) == "%%") {
      text += '%';
      format.has_percent = true;
      at += 2;
    } else {
      const std::string_view conversion = conversion_at(line.substr(at));
      if (conversion.empty() || !format.conversion.empty()) return std::nullopt;
      format.conversion = conversion;
      at += conversion.size();
    }
  }
  if (format.conversion.empty()) return std::nullopt;
  return format;
}

template <class Number>
std::string print(const std::string& conversion, Number number) {
  std::string text(static_cast<size_t>(std::snprintf(nullptr, 0, conversion.c_str(), number)), '\0');
  std::snprintf(text.data(), text.size() + 1, conversion.c_str(), number);
  return text;
}

/// Returns a size or a duration with a unit for readers. Values that are not finite are printed as they are.
std::string readable(const Metric& metric) {
  const double value = number_of(metric);
  if (!std::isfinite(value) || std::abs(value) > 1e18) return print("%g", value);
  return metric.unit == "bytes" ? readable_bytes(static_cast<int64_t>(value)) : readable_duration(value);
}

std::string value_text(const Metric& metric, const Format& format) {
  if (format.kind() == 's') return readable(metric);
  if (format.kind() != 'd') {
    const double factor = metric.unit == "share" && format.has_percent ? 100 : 1;
    return print(format.conversion, factor * number_of(metric));
  }
  std::string conversion = format.conversion;
  conversion.insert(conversion.size() - 1, "ll");
  return print(conversion, static_cast<long long>(std::get<int64_t>(metric.value)));
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
  return join(shown, "  ", formatted);
}

void check_format(const Metric& metric) {
  if (metric.line.empty()) return;
  const std::optional<Format> format = parse(metric.line);
  require(format.has_value(), "metrics", "the progress line's format of metric `", metric.name,
          "` must have one conversion such as %.3f, %d or %s: got `", metric.line, "`; change its `line`");
  require(format->kind() != 's' || metric.unit == "bytes" || metric.unit == "s", "metrics", "%s in the format of `",
          metric.name, "` needs the unit bytes or s: got `", metric.unit, "`; write %g, or change its `unit`");
  require(format->kind() != 'd' || std::holds_alternative<int64_t>(metric.value), "metrics", "%d in the format of `",
          metric.name, "` needs an integer; write %g, or give it an int64_t");
}

std::string formatted(const Metric& metric) {
  const Format format = *parse(metric.line);
  return concat(format.before, value_text(metric, format), format.after);
}

}  // namespace colossal::report
