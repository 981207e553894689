#include "colossal/cli/bench_sequence.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/parallel/sequence/attention_cost.h"
#include "colossal/report/html.h"
#include "colossal/report/plot.h"
#include "colossal/report/report_page.h"

namespace colossal::cli {
namespace {

using parallel::AttentionCost;
using parallel::AttentionSizes;
using parallel::SequenceConfig;

struct SequenceRow {
  SequenceConfig config;
  AttentionCost measured, formula;  // of the rank that has most
  double busiest;                   // operations of that rank over the mean
};

/// A pair of columns: the measured value and the formula's.
struct SequenceColumn {
  const char* name;
  double AttentionCost::* value;
  double unit;
  int digits, width;
};

const SequenceColumn kSequenceColumns[] = {
    {"sent forward", &AttentionCost::forward, 1, 0, 9},
    {"sent backward", &AttentionCost::backward, 1, 0, 9},
    {"calls", &AttentionCost::calls, 1, 0, 4},
    {"activations, MiB", &AttentionCost::activation_bytes, kMiB, 3, 8},
};
constexpr int kSequenceModeWidth = 20;

constexpr const char* kSequenceLegend =
    "Causal attention of one layer, fp32. Each pair of columns: measured, formula, of the rank that has most. Sent: "
    "elements a rank puts on\nthe wire. Activations: what it keeps for backward beside its q, k, v and the result. "
    "Busiest: operations of that rank over the mean.\n";

std::string shown(const SequenceColumn& column, const AttentionCost& cost) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", column.digits, cost.*column.value / column.unit);
  return text;
}

std::string shown(double ratio) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.4f", ratio);
  return text;
}

SequenceRow row_of(const SequenceConfig& config, const AttentionSizes& sizes) {
  SequenceRow row{config, {}, parallel::published_cost(config, sizes), 0};
  double sum = 0;
  for (const AttentionCost& rank : parallel::measured_cost(config, sizes)) {
    for (const SequenceColumn& column : kSequenceColumns)
      row.measured.*column.value = std::max(row.measured.*column.value, rank.*column.value);
    row.measured.operations = std::max(row.measured.operations, rank.operations);
    sum += rank.operations;
  }
  row.busiest = row.measured.operations * static_cast<double>(config.size) / sum;
  return row;
}

void print(const SequenceRow& row) {
  std::printf("%5lld  %-*s", static_cast<long long>(row.config.size), kSequenceModeWidth,
              parallel::mode_name(row.config).c_str());
  for (const SequenceColumn& c : kSequenceColumns)
    std::printf("  %*s %*s", c.width, shown(c, row.measured).c_str(), c.width, shown(c, row.formula).c_str());
  std::printf("  %7s\n", shown(row.busiest).c_str());
  std::fflush(stdout);
}

/// A line a mode over the numbers of ranks.
report::Plot plot_of(const std::vector<SequenceRow>& rows, const char* title, report::PlotUnit unit,
                     double (*value)(const AttentionCost&)) {
  const char* const styles[] = {"first", "second", "third", "fourth", "fifth", "sixth", "seventh"};
  report::Plot plot{.title = title, .x_label = "ranks", .unit = unit, .from_zero = true};
  for (const SequenceRow& row : rows) {
    const std::string name = parallel::mode_name(row.config);
    auto series = std::find_if(plot.series.begin(), plot.series.end(), [&](const auto& s) { return s.name == name; });
    if (series == plot.series.end())
      series = plot.series.insert(series, {name, styles[plot.series.size() % std::size(styles)], {}, {}});
    series->x.push_back(static_cast<double>(row.config.size));
    series->y.push_back(value(row.measured));
  }
  return plot;
}

std::string page_of(const std::string& title, const std::vector<SequenceRow>& rows, const std::string& notes) {
  std::string out = "<section class='plots'>" +
                    report::render_plot(plot_of(rows, "Elements sent per rank", report::PlotUnit::kNumber,
                                                [](const AttentionCost& c) { return c.forward + c.backward; })) +
                    report::render_plot(plot_of(rows, "Activations kept per rank", report::PlotUnit::kBytes,
                                                [](const AttentionCost& c) { return c.activation_bytes; })) +
                    "</section>\n<section class='card'><p>" + report::html_text(kSequenceLegend) +
                    "</p><div class='scroll'><table class='numbers'><tr><th>ranks</th><th>mode</th>";
  for (const SequenceColumn& c : kSequenceColumns) out += concat("<th>", c.name, "</th><th>formula</th>");
  out += "<th>busiest</th>";
  for (const SequenceRow& row : rows) {
    out += concat("</tr>\n<tr><td>", row.config.size, "</td><td>", parallel::mode_name(row.config), "</td>");
    for (const SequenceColumn& c : kSequenceColumns)
      out += "<td>" + shown(c, row.measured) + "</td><td>" + shown(c, row.formula) + "</td>";
    out += "<td>" + shown(row.busiest) + "</td>";
  }
  out += "</tr></table></div><pre>" + report::html_text(notes) + "</pre></section>\n";
  return report::render_page("Sequence parallelism", title, out);
}

}  // namespace

int bench_sequence(const Arguments& arguments) {
  CLI::App app(
      "Runs the attention of one layer under every mode of sequence parallelism and counts what each rank sends, keeps "
      "and computes.",
      "colossal bench sequence");
  AttentionSizes sizes;
  std::vector<int64_t> ranks{2, 4, 8};
  std::string report;
  const auto size = [&](const char* name, int64_t& value, const char* help, int64_t most) {
    app.add_option(name, value, help)->capture_default_str()->check(CLI::Range(int64_t{1}, most));
  };
  size("--batch", sizes.batch, "rows", 1 << 16);
  size("--sequence", sizes.tokens, "tokens a row; the formulas are for those that divide by 2 * ranks", 1 << 20);
  size("--heads", sizes.heads, "attention heads", 1 << 12);
  size("--kv-heads", sizes.kv_heads, "key-value heads, which divide the attention heads", 1 << 12);
  size("--head-dim", sizes.head_dim, "features of a head", 1 << 12);
  app.add_option("--ranks", ranks, "numbers of ranks, 2 or more; each is a thread")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(2, 256));
  app.add_option("--report", report, "write the table and plots to this HTML file");
  parse(app, arguments);
  if (sizes.heads % sizes.kv_heads != 0)
    throw UsageError(concat("--heads must divide by --kv-heads: got ", sizes.heads, " and ", sizes.kv_heads));
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());

  const std::string title = concat("batch ", sizes.batch, ", sequence ", sizes.tokens, ", heads ", sizes.heads,
                                   ", kv heads ", sizes.kv_heads, " of ", sizes.head_dim);
  std::printf("%s\n%s\nranks  %-*s", title.c_str(), kSequenceLegend, kSequenceModeWidth, "mode");
  for (const SequenceColumn& c : kSequenceColumns) std::printf("  %*s", 2 * c.width + 1, c.name);
  std::printf("  %7s\n", "busiest");
  std::vector<SequenceRow> rows;
  std::string notes;
  for (const int64_t count : ranks)
    for (const SequenceConfig& config : parallel::sequence_modes(count)) {
      try {
        rows.push_back(row_of(config, sizes));
        print(rows.back());
      } catch (const Error& error) {
        notes += concat(count, " ranks, ", parallel::mode_name(config), ": left out: ", error.message(), "\n");
      }
    }
  if (!notes.empty()) std::printf("\n%s", notes.c_str());
  if (!report.empty()) write_file(report, page_of(title, rows, notes));
  return 0;
}

}  // namespace colossal::cli
