// Pictures of quantities that every step of a run has: for a terminal and as SVG.
#pragma once
#include <string>
#include <vector>

namespace colossal::report {

struct Curve {
  std::string title, note;
  std::vector<double> values;  ///< of steps 1, 2, ...; finite, not negative
};

/// A plot of `width` by `height` characters and its labels: a mark where the value of each column's steps lies, on an
/// axis from 0 to `top`.
std::vector<std::string> draw_text(const Curve& curve, int width, int height, double top);

/// One document that needs nothing else: a plot for each curve, `columns` of them side by side, all on one scale.
std::string draw_svg(const std::vector<Curve>& curves, int columns);

}  // namespace colossal::report
