#include "colossal/report/metric_format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string_view>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/progress.h"

namespace colossal::report {
namespace {

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
