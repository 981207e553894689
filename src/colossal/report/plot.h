// Line plots as inline SVG for the report, with axes, round ticks, grid and legend. The page's style sheet sets
// colours.
#pragma once
#include <string>
#include <vector>

namespace colossal::report {

enum class PlotUnit { kNumber, kBytes };

/// One line of a plot.
struct Series {
  std::string name;          // name in the legend
  std::string style;         // class of the line: "first" to "seventh", or "faint"
  std::vector<double> x, y;  // equally long; x rises; y may contain NaN and infinities
};

/// A plot and its lines.
struct Plot {
  std::string title;
  std::string x_label = "step";
  PlotUnit unit = PlotUnit::kNumber;
  bool from_zero = false;  // the y axis starts at 0
  std::vector<Series> series;
};

/// Returns a <figure> with the title, the drawing and the points for the page's hover script.
///
/// Series of more than 800 points are thinned to that number. Each stretch keeps its lowest and highest value, so
/// spikes remain visible. Values that are not finite interrupt the line and are marked at the lower edge. A series of
/// one point is drawn as a dot. A plot without a finite value shows a message.
std::string render_plot(const Plot& plot);

/// Returns a self-contained SVG document with title, note, legend and drawing, 560 by 320 units. Earlier series have
/// wider lines, so that equal series are all visible.
/// Errors ("report"): more than seven series.
std::string render_svg(const Plot& plot, const std::string& note);

/// Returns the largest difference between two series at the same x, over all x that every series has; NaN if there is
/// none. Values that are not finite are skipped.
double largest_difference(const std::vector<Series>& series);

/// Returns `series` thinned to at most `max_points` points, as render_plot() draws it.
Series thin(const Series& series, size_t max_points);

/// Returns multiples of 1, 2 or 5 times a power of ten inside [low, high], about `count` of them.
std::vector<double> round_ticks(double low, double high, int count);

/// Returns the middle of a centred label of `font` pixels: `middle`, moved so that the label fits between 0 and
/// `width`.
double label_middle(double middle, const std::string& label, double font, double width);

/// Returns at most four significant digits: 12000 -> "12k", 0.0003 -> "3e-4", 1.25 -> "1.25".
std::string short_number(double value);

}  // namespace colossal::report
