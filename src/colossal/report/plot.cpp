#include "colossal/report/plot.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/html.h"
#include "colossal/base/number.h"
#include "colossal/base/svg.h"

namespace colossal::report {
namespace {

// The layout of the drawing in drawing units: margins around the frame hold the labels.
constexpr double kWidth = 560, kHeight = 250;
constexpr double kLeft = 58, kRight = 14, kTop = 12, kBottom = 36;
constexpr double kTickFont = 12;
constexpr size_t kMaxPlotPoints = 800;
constexpr const char* kColours[] = {"#2f6fde", "#e07b1f", "#1d9e6e", "#8d5bd6", "#d64f88", "#2297ab", "#a5951b"};
constexpr const char* kNothing = "no finite value to show";
constexpr size_t kMaxMarks = 200;  // maximum number of marks for values that are not finite

constexpr SvgWriter kPlotSvg;

struct Scale {
  double low = 0, high = 1, begin = 0, end = 1;
  double operator()(double value) const { return begin + (value - low) / (high - low) * (end - begin); }
};

struct Bounds {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

Scale x_scale(const Plot& plot) {
  Bounds bounds;
  for (const auto& series : plot.series) {
    for (const double x : series.x) bounds.add(x);
  }
  if (bounds.empty()) bounds = {0, 1};
  if (bounds.low == bounds.high) bounds = {bounds.low - 1, bounds.high + 1};
  return {bounds.low, bounds.high, kLeft, kWidth - kRight};
}

/// Returns the y scale. If no value is finite, its low is not below its high.
Scale y_scale(const Plot& plot) {
  Bounds bounds;
  for (const auto& series : plot.series) {
    for (const double y : series.y) bounds.add(y);
  }
  if (bounds.empty()) return {0, 0, 0, 0};
  if (plot.from_zero) bounds.add(0);
  double room = 0.06 * (bounds.high - bounds.low);
  if (room == 0) room = bounds.high == 0 ? 1 : 0.1 * std::abs(bounds.high);
  const double low = plot.from_zero && bounds.low >= 0 ? 0 : bounds.low - room;
  return {low, bounds.high + room, kHeight - kBottom, kTop};
}

std::string label(double value, PlotUnit unit) {
  return unit == PlotUnit::kBytes ? readable_bytes(static_cast<int64_t>(value)) : short_number(value);
}

/// Returns ticks at round byte sizes: powers of two of a unit, so that labels read 256 MiB instead of 286.1 MiB.
std::vector<double> byte_ticks(double low, double high, int count) {
  const double step = std::exp2(std::max(0.0, std::ceil(std::log2(std::max((high - low) / count, 1.0)))));
  std::vector<double> ticks;
  for (double tick = std::ceil(low / step) * step; tick <= high; tick += step) ticks.push_back(tick + 0.0);
  return ticks;
}

std::string tick_text(const char* anchor, double x, double y, const std::string& text) {
  return kPlotSvg.element("text", {{"class", "tick"}, {"text-anchor", anchor}, {"x", x}, {"y", y}}, html_text(text));
}

std::string draw_axes(const Plot& plot, const Scale& x, const Scale& y) {
  std::string out;
  const auto ticks = plot.unit == PlotUnit::kBytes ? byte_ticks(y.low, y.high, 5) : round_ticks(y.low, y.high, 5);
  for (const double tick : ticks)
    out += kPlotSvg.line_across("grid", kLeft, kWidth - kRight, y(tick)) +
           tick_text("end", kLeft - 7, y(tick) + 4, label(tick, plot.unit));
  for (const double tick : round_ticks(x.low, x.high, 6)) {
    if (tick != std::floor(tick)) continue;  // steps are integers
    const std::string name = short_number(tick);
    out += tick_text("middle", label_middle(x(tick), name, kTickFont, kWidth), kHeight - kBottom + 17, name);
  }
  out += kPlotSvg.line_across("axis", kLeft, kWidth - kRight, kHeight - kBottom);
  return out + kPlotSvg.element("text",
                                {{"class", "name"}, {"text-anchor", "end"}, {"x", kWidth - kRight}, {"y", kHeight - 5}},
                                html_text(plot.x_label));
}

std::string draw_series(const Series& series, const Scale& x, const Scale& y) {
  std::string path, dots, marks;
  bool open = false;
  size_t run = 0, marked = 0;
  const size_t mark_every = series.x.size() / kMaxMarks + 1;
  const auto close_run = [&](size_t end) {
    if (run == 1) {  // a point between two gaps: a path of one point is invisible
      dots += kPlotSvg.circle(series.style, 3, x(series.x[end - 1]), y(series.y[end - 1]));
    }
    run = 0;
    open = false;
  };
  for (size_t i = 0; i < series.x.size(); ++i) {
    if (!std::isfinite(series.y[i])) {
      close_run(i);
      if (marked++ % mark_every != 0) continue;
      marks += kPlotSvg.path("bad", kPlotSvg.point('M', x(series.x[i]) - 4, kHeight - kBottom) + "h8l-4 -7z");
      continue;
    }
    path += kPlotSvg.point(open ? 'L' : 'M', x(series.x[i]), y(series.y[i]));
    open = true;
    ++run;
  }
  close_run(series.x.size());
  return kPlotSvg.path("line " + series.style, path) + dots + marks;
}

/// Returns the thinned points for the hover script, with labels as texts:
/// {"label":..,"low":..,"high":..,"series":[{"name":..,"x":[..],"y":[..]}]}
std::string hover_points(const Plot& plot, const Scale& x) {
  std::string out =
      "{\"label\":\"" + plot.x_label + "\",\"low\":" + concat(x.low) + ",\"high\":" + concat(x.high) + ",\"series\":[";
  for (const auto& series : plot.series) {
    if (series.style == "faint") continue;  // the smooth line represents it
    out += out.back() == '[' ? "{\"name\":\"" : ",{\"name\":\"";
    out += series.name + "\",\"x\":[";
    for (size_t i = 0; i < series.x.size(); ++i) out += (i ? "," : "") + concat(static_cast<int64_t>(series.x[i]));
    out += "],\"y\":[";
    for (size_t i = 0; i < series.y.size(); ++i) {
      const double y = series.y[i];
      out += (i ? ",\"" : "\"") + (std::isfinite(y) ? label(y, plot.unit) : short_number(y)) + "\"";
    }
    out += "]}";
  }
  return out + "]}";
}

std::string legend(const Plot& plot) {
  if (plot.series.size() < 2) return "";
  std::string out = "<span class='legend'>";
  for (const auto& series : plot.series)
    out += "<span class='key " + series.style + "'>" + html_text(series.name) + "</span>";
  return out + "</span>";
}

}  // namespace

std::string render_plot(const Plot& plot) {
  Plot thinned = plot;
  size_t bad = 0;
  for (auto& series : thinned.series) {
    bad += series.style == "faint"
               ? 0
               : std::count_if(series.y.begin(), series.y.end(), [](double y) { return !std::isfinite(y); });
    series = thin(series, kMaxPlotPoints);
  }
  const Scale x = x_scale(plot), y = y_scale(plot);
  const bool drawable = y.low < y.high;
  std::string out = "<figure class='card plot'><figcaption><b>" + html_text(plot.title) + "</b>" + legend(plot);
  if (bad > 0)
    out += "<span class='warn'>" + concat(bad, bad == 1 ? " value is" : " values are") + " not finite</span>";
  std::string drawing;
  if (drawable) {
    drawing = draw_axes(thinned, x, y);
    for (const auto& series : thinned.series) drawing += draw_series(series, x, y);
    drawing += kPlotSvg.element("line", {{"class", "cursor"}, {"y1", 12}, {"y2", 214}, {"x1", -9}, {"x2", -9}});
  } else {
    drawing =
        kPlotSvg.element("text", {{"class", "name"}, {"text-anchor", "middle"}, {"x", 280}, {"y", 125}}, kNothing);
  }
  out += "</figcaption>" +
         kPlotSvg.element("svg", {{"viewBox", "0 0 560 250"}, {"role", "img"}, {"aria-label", plot.title}}, drawing);
  if (drawable) out += "<script type='application/json'>" + hover_points(thinned, x) + "</script>";
  return out + "<output></output></figure>\n";
}

std::string render_svg(const Plot& plot, const std::string& note) {
  require(plot.series.size() <= std::size(kColours), "report", "a plot must have at most ", std::size(kColours),
          " series: got ", plot.series.size(), "; name fewer runs");
  constexpr int kHead = 70;
  std::string style =
      "text{font:12px system-ui,sans-serif;fill:#5b6472}.title{font-size:15px;font-weight:600;"
      "fill:#1c2430}.line{fill:none;stroke-linejoin:round}.grid{stroke:#e4e7ec}.axis{stroke:#8a93a3}"
      ".bad{fill:#c8102e}";
  Plot drawn = plot;
  std::string legend;
  double left = kLeft;
  for (size_t i = 0; i < drawn.series.size(); ++i) {
    Series& series = drawn.series[i];
    series = thin(series, kMaxPlotPoints);
    series.style = concat("s", i);
    const double width = 1.5 + 1.8 * static_cast<double>(drawn.series.size() - 1 - i);
    style +=
        concat(".s", i, "{stroke:", kColours[i], ";stroke-width:", width, "}circle.s", i, "{fill:", kColours[i], "}");
    legend += kPlotSvg.line_across(series.style, left, left + 18, 54) +
              kPlotSvg.element("text", {{"x", left + 23}, {"y", 58}}, html_text(series.name));
    left += 40 + 7 * static_cast<double>(series.name.size());
  }
  const Scale x = x_scale(plot), y = y_scale(plot);
  std::string drawing;
  if (y.low < y.high) {
    drawing = draw_axes(drawn, x, y);
    for (const Series& series : drawn.series) drawing += "\n" + draw_series(series, x, y);
  } else {
    drawing = kPlotSvg.element("text", {{"text-anchor", "middle"}, {"x", 280}, {"y", 125}}, kNothing);
  }
  constexpr int kWhole = static_cast<int>(kWidth), kEdge = static_cast<int>(kLeft);
  const std::string head = kPlotSvg.text("title", kEdge, 20, plot.title) +
                           kPlotSvg.element("text", {{"x", kEdge}, {"y", 38}}, html_text(note)) + legend + "\n";
  return kPlotSvg.document(kWhole, static_cast<int>(kHeight) + kHead, style, head + kPlotSvg.moved(0, kHead, drawing));
}

double largest_difference(const std::vector<Series>& series) {
  struct Range {
    double low, high;
    size_t count;
  };
  std::map<double, Range> at;
  for (const Series& one : series) {
    for (size_t i = 0; i < one.x.size(); ++i) {
      const double y = one.y[i];
      if (!std::isfinite(y)) continue;
      const auto [range, is_new] = at.try_emplace(one.x[i], Range{y, y, 0});
      range->second = {std::min(range->second.low, y), std::max(range->second.high, y), range->second.count + 1};
    }
  }
  double largest = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [x, range] : at)
    if (range.count == series.size() && !(largest >= range.high - range.low)) largest = range.high - range.low;
  return largest;
}

Series thin(const Series& series, size_t max_points) {
  const size_t count = series.x.size();
  if (count <= max_points) return series;
  Series thinned{series.name, series.style, {}, {}};
  const auto keep = [&](size_t i) {
    thinned.x.push_back(series.x[i]);
    thinned.y.push_back(series.y[i]);
  };
  const size_t stretches = max_points / 2;
  for (size_t stretch = 0; stretch < stretches; ++stretch) {
    const size_t begin = stretch * count / stretches, end = (stretch + 1) * count / stretches;
    size_t low = begin, high = begin, bad = end;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(series.y[i])) {
        bad = i;
        continue;
      }
      if (!(series.y[i] >= series.y[low])) low = i;  // written this way, a NaN at `begin` is replaced
      if (!(series.y[i] <= series.y[high])) high = i;
      if (!std::isfinite(series.y[low])) low = i;
      if (!std::isfinite(series.y[high])) high = i;
    }
    if (bad != end) high = std::isfinite(series.y[low]) ? bad : low;  // keeps a value that is not finite visible
    keep(std::min(low, high));
    if (low != high) keep(std::max(low, high));
  }
  return thinned;
}

std::vector<double> round_ticks(double low, double high, int count) {
  const double rough = (high - low) / count, power = std::pow(10.0, std::floor(std::log10(rough)));
  const double lead = rough / power;
  const double step = power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
  std::vector<double> ticks;
  // + 0.0 turns -0 into 0.
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i) ticks.push_back(i * step + 0.0);
  return ticks;
}

double label_middle(double middle, const std::string& label, double font, double width) {
  constexpr double kCharacter = 0.68;  // em, the width of a wide digit in common fonts
  const double half = 0.5 * kCharacter * font * static_cast<double>(label.size());
  return std::max(half, std::min(middle, width - half));
}

std::string short_number(double value) {
  const double size = std::abs(value);
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "infinite" : "-infinite";
  if (size >= 1e12 || (size > 0 && size < 1e-3)) {
    const int exponent = static_cast<int>(std::floor(std::log10(size)));
    return concat(text_of(value / std::pow(10.0, exponent), 3), "e", exponent);
  }
  const char* suffix = "";
  if (size >= 1e4) {
    const int thousands = size >= 1e9 ? 3 : size >= 1e6 ? 2 : 1;
    value /= std::pow(1000.0, thousands);
    suffix = thousands == 3 ? "B" : thousands == 2 ? "M" : "k";
  }
  return text_of(value, 4) + suffix;
}

}  // namespace colossal::report
