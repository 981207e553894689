// Line plots as inline SVG, for the report: axes with round ticks, grid, legend; colours come from the page's style
// sheet.
#pragma once
#include <string>
#include <vector>

namespace colossal::report {

enum class PlotUnit { kNumber, kBytes };

struct Series {
  std::string name;          // of the legend
  std::string style;         // class of the line: "first" to "seventh", or "faint"
  std::vector<double> x, y;  // equally long, x rising; y may hold NaN and infinities
};

struct Plot {
  std::string title;
  std::string x_label = "step";
  PlotUnit unit = PlotUnit::kNumber;
  bool from_zero = false;  // the y axis starts at 0
  std::vector<Series> series;
};

/// A <figure> with the title, the drawing and the points for the page's hover script.
///
/// Long series are thinned to at most 800 points that keep each stretch's lowest and highest value, so spikes stay
/// visible. Values that are not finite interrupt the line and are marked at the lower edge; a series of one point is
/// drawn as a dot; a plot without a finite value says so.
std::string render_plot(const Plot& plot);

/// One SVG document that needs nothing else: title, note, legend and drawing, 560 by 320 units. An earlier series is
/// drawn with a wider line, so that series which agree are all visible. A plot has at most seven series.
/// Errors ("report"): more than seven series.
std::string render_svg(const Plot& plot, const std::string& note);

/// The largest difference between two series at the same x, over all x that every series has; NaN if there is none.
/// Values that are not finite are skipped.
double largest_difference(const std::vector<Series>& series);

/// `series` thinned to at most `most` points, as render_plot draws it.
Series thin(const Series& series, size_t most);

/// Multiples of 1, 2 or 5 times a power of ten inside [low, high], about `count` of them.
std::vector<double> round_ticks(double low, double high, int count);

/// The middle of a centred label of `font` pixels that is wanted at `middle`, moved until the label lies between 0 and
/// `width`.
double label_middle(double middle, const std::string& label, double font, double width);

/// 12000 -> "12k", 0.0003 -> "3e-4", 1.25 -> "1.25": at most four significant digits.
std::string short_number(double value);

}  // namespace colossal::report
