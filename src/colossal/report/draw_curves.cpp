#include "colossal/report/draw_curves.h"

#include <algorithm>
#include <cmath>

#include "colossal/base/svg.h"
#include "colossal/report/plot.h"

namespace colossal::report {
namespace {

// The layout of one plot in drawing units: margins around the frame hold the title and the labels.
constexpr double kCurveWidth = 380, kCurveHeight = 220, kCurveLeft = 58, kCurveRight = 14, kCurveTop = 46,
                 kCurveBottom = 30;
constexpr double kCurveFont = 11;
constexpr size_t kMaxCurvePoints = 400;
constexpr const char* kCurveStyle =
    "text{font:11px "
    "system-ui,sans-serif;fill:#555}.title{font-size:13px;font-weight:600;fill:#222}.end{text-anchor:end}.mid{text-"
    "anchor:middle}"
    ".grid{stroke:#e4e4e0}.axis{stroke:#888}.line{fill:none;stroke:#3b6fb6;stroke-width:1.8;stroke-linejoin:round}";
constexpr int kLabel = 9;  // number of characters before the axis in a terminal

double top_of(const std::vector<Curve>& curves) {
  double top = 0;
  for (const Curve& curve : curves)
    for (const double value : curve.values) top = std::max(top, value);
  return top > 0 ? top : 1;
}

constexpr SvgWriter kCurveSvg;

std::string draw_plot(const Curve& curve, double top) {
  Series series{curve.title, "", {}, curve.values};
  for (size_t i = 0; i < curve.values.size(); ++i) series.x.push_back(static_cast<double>(i + 1));
  series = thin(series, kMaxCurvePoints);
  const double last = std::max<double>(2, static_cast<double>(curve.values.size()));
  const auto x = [&](double step) {
    return kCurveLeft + (step - 1) / (last - 1) * (kCurveWidth - kCurveLeft - kCurveRight);
  };
  const auto y = [&](double value) {
    return kCurveHeight - kCurveBottom - value / (1.04 * top) * (kCurveHeight - kCurveTop - kCurveBottom);
  };
  std::string out =
      kCurveSvg.text("title", kCurveLeft, 18.0, curve.title) + kCurveSvg.text("", kCurveLeft, 33.0, curve.note);
  for (const double tick : round_ticks(0, top, 4))
    out += kCurveSvg.line("grid", kCurveLeft, y(tick), kCurveWidth - kCurveRight, y(tick)) +
           kCurveSvg.text("end", kCurveLeft - 6, y(tick) + 4, short_number(tick));
  for (const double tick : round_ticks(1, last, 4))
    if (tick == std::floor(tick))
      out += kCurveSvg.text("mid", label_middle(x(tick), short_number(tick), kCurveFont, kCurveWidth),
                            kCurveHeight - kCurveBottom + 16, short_number(tick));
  std::string path;
  for (size_t i = 0; i < series.x.size(); ++i) path += kCurveSvg.point(i ? 'L' : 'M', x(series.x[i]), y(series.y[i]));
  return out + kCurveSvg.line("axis", kCurveLeft, y(0), kCurveWidth - kCurveRight, y(0)) + kCurveSvg.path("line", path);
}

}  // namespace

std::vector<std::string> draw_text(const Curve& curve, int width, int height, double top) {
  const int columns = std::max(8, width - kLabel - 2);
  const auto steps = static_cast<double>(curve.values.size());
  std::vector<std::string> rows(height, std::string(columns, ' '));
  const auto row_of = [&](double value) {
    return height - 1 - std::clamp<int>(static_cast<int>(value / top * height), 0, height - 1);
  };
  for (int column = 0; column < columns; ++column) {
    const auto first = static_cast<size_t>(column * steps / columns),
               end = static_cast<size_t>((column + 1) * steps / columns);
    const auto stretch =
        std::minmax_element(curve.values.begin() + first, curve.values.begin() + std::max(first + 1, end));
    for (int row = row_of(*stretch.second); row <= row_of(*stretch.first); ++row) rows[row][column] = '*';
  }
  std::vector<std::string> lines;
  for (int row = 0; row < height; ++row) {
    std::string label = row == 0 ? short_number(top) : row == height - 1 ? "0" : "";
    label.insert(0, std::max<int>(0, kLabel - static_cast<int>(label.size())), ' ');
    lines.push_back(label + " |" + rows[row]);
  }
  const std::string first = "1", last = std::to_string(curve.values.size());
  const auto gap = std::max<int>(1, columns - static_cast<int>(first.size() + last.size()));
  lines.push_back(std::string(kLabel + 2, ' ') + first + std::string(gap, ' ') + last);
  return lines;
}

std::string draw_svg(const std::vector<Curve>& curves, int columns) {
  const int across = std::min<int>(columns, static_cast<int>(curves.size())),
            down = (static_cast<int>(curves.size()) + across - 1) / across;
  const auto width = static_cast<int>(kCurveWidth), height = static_cast<int>(kCurveHeight);
  const double top = top_of(curves);
  std::string out;
  for (size_t i = 0; i < curves.size(); ++i) {
    const auto column = static_cast<int>(i) % across, row = static_cast<int>(i) / across;
    out += kCurveSvg.moved(column * width, row * height, draw_plot(curves[i], top)) + "\n";
  }
  return kCurveSvg.document(across * width, down * height, kCurveStyle, out);
}

}  // namespace colossal::report
