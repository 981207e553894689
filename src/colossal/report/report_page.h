// The page that all reports share, and its style sheet and scripts, which cmake/EmbedTexts.cmake makes from report.css,
// plots.js and charts.js.
#pragma once
#include <string>
#include <string_view>

namespace colossal::report {

/// Returns the style sheet of all pages.
std::string_view page_style();

/// Returns the script that finds the point of each series of a render_plot() that is nearest to the pointer and writes
/// its step and value above the plot. For a series without a point at that step, it also writes the step of the value.
/// Its 58 and 546 are the left and right edge of the frame in a drawing of width 560 (plot.cpp).
std::string_view plots_script();

/// Returns the script that draws the charts of chart_data(), all into the element with the id "charts". It reacts to
/// the controls with the ids "x", "log" and "smooth" and to the check boxes named "run". It stores the view in the
/// page's address: #x=time&log=1&smooth=0.9&hide=2.
std::string_view charts_script();

/// Returns a self-contained page, which is prevented from loading other files. `kind` is shown above the title; `body`
/// is HTML. `script` runs after the body is parsed; empty = none.
std::string render_page(const std::string& kind, const std::string& title, const std::string& body,
                        std::string_view script = plots_script());

}  // namespace colossal::report
