// Plots of quantities that every step of a run has, for a terminal and as SVG.
#pragma once
#include <string>
#include <vector>

namespace colossal::report {

/// The values of one quantity.
struct Curve {
  std::string title, note;
  std::vector<double> values;  ///< values of steps 1, 2, ...; finite, not negative
};

/// Returns the lines of a plot of `width` by `height` characters with its labels. The axis goes from 0 to `top`; each
/// column has marks over the range of its steps' values.
std::vector<std::string> draw_text(const Curve& curve, int width, int height, double top);

/// Returns a self-contained SVG document: a plot for each curve, `columns` plots per row, all with the same scale.
std::string draw_svg(const std::vector<Curve>& curves, int columns);

}  // namespace colossal::report
