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

/// Returns the lines of a plot: `height` lines, and one with the first and the last step. They are `width` characters
/// wide with the labels, at least 19. The axis goes from 0 to `top`; each column has marks over the range of its steps'
/// values. The curve must have a value.
std::vector<std::string> draw_text(const Curve& curve, int width, int height, double top);

/// Returns a self-contained SVG document: a plot for each curve, `columns` plots per row, all with the same scale.
/// There must be a curve.
std::string draw_svg(const std::vector<Curve>& curves, int columns);

}  // namespace colossal::report
