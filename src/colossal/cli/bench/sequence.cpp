#include "colossal/cli/bench/sequence.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/cli/bench/measured_table.h"
#include "colossal/parallel/sequence/attention_cost.h"
#include "colossal/report/html.h"
#include "colossal/report/plot.h"
#include "colossal/report/report_page.h"

namespace colossal::cli {
namespace {

using parallel::AttentionCost;
using parallel::AttentionSizes;
using parallel::SequenceConfig;

MeasuredTable attention_table() {
  return {{{"sent forward", 1, 0, 10},
           {"sent backward", 1, 0, 10},
           {"between nodes", 1, 0, 10},
           {"calls", 1, 0, 4},
           {"activations, MiB", kMiB, 3, 8},
           {"GFLOP", 1e9, 4, 8},
           {"busiest / mean", 1, 4, 7}},
          19};
}

constexpr const char* kAttentionLegend =
    "Attention of one layer in fp32, forward and backward, without its projections. Each pair of columns: measured, "
    "formula.\nSent: bytes that a rank sends; between nodes: forward and backward bytes over the outer ring of "
    "sequence.node.\nActivations: memory that a rank keeps from forward for backward, including the result. GFLOP: "
    "operations on the\nquery-key pairs that the mask allows. Busiest / mean: operations of the busiest rank, for "
    "which the others wait, over the\nmean. All other columns: the maximum over the ranks. Megatron's form "
    "(tensor.sequence) communicates around the\nprojections instead: colossal bench tensor-parallel.\n";

/// Returns for each value of the table the maximum over the ranks.
std::vector<double> busiest(const std::vector<AttentionCost>& ranks) {
  const auto most = [&](double AttentionCost::* value) {
    double largest = 0;
    for (const AttentionCost& cost : ranks) largest = std::max(largest, cost.*value);
    return largest;
  };
  double operations = 0;
  for (const AttentionCost& cost : ranks) operations += cost.operations;
  return {most(&AttentionCost::forward),
          most(&AttentionCost::backward),
          most(&AttentionCost::between_nodes),
          most(&AttentionCost::calls),
          most(&AttentionCost::activation_bytes),
          most(&AttentionCost::operations),
          most(&AttentionCost::operations) * static_cast<double>(ranks.size()) / operations};
}

std::string title_of_attention(const AttentionSizes& s) {
  return concat("batch ", s.batch, ", ", s.tokens, " tokens, heads ", s.heads, ", kv heads ", s.kv_heads, " of ",
                s.head_dim, s.causal ? ", causal" : "");
}

/// Returns one line per mode over the numbers of ranks. It leaves out modes with sequence.node, which send, store and
/// compute as much as the same mode without it: a plot can distinguish only as many lines as it has styles.
std::vector<report::Series> lines_of_modes(const std::vector<MeasuredRow>& rows,
                                           double (*value)(const std::vector<double>&)) {
  const char* const styles[] = {"first", "second", "third", "fourth", "fifth", "sixth", "seventh"};
  std::vector<report::Series> all;
  for (const MeasuredRow& row : rows) {
    if (row.mode.find(" node ") != std::string::npos) continue;
    auto series = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == row.mode; });
    if (series == all.end())
      series = all.insert(all.end(), report::Series{row.mode, styles[all.size() % std::size(styles)], {}, {}});
    series->x.push_back(static_cast<double>(row.ranks));
    series->y.push_back(value(row.measured));
  }
  return all;
}

std::string page_of_attention(const AttentionSizes& sizes, const std::vector<MeasuredRow>& rows,
                              const std::string& notes) {
  const report::Plot plots[] = {
      {.title = "Bytes sent per rank, forward and backward",
       .x_label = "ranks",
       .unit = report::PlotUnit::kBytes,
       .from_zero = true,
       .series = lines_of_modes(rows, [](const std::vector<double>& v) { return v[0] + v[1]; })},
      {.title = "Activations kept per rank",
       .x_label = "ranks",
       .unit = report::PlotUnit::kBytes,
       .from_zero = true,
       .series = lines_of_modes(rows, [](const std::vector<double>& v) { return v[4]; })},
      {.title = "Operations of the busiest rank over the mean",
       .x_label = "ranks",
       .series = lines_of_modes(rows, [](const std::vector<double>& v) { return v[6]; })},
  };
  std::string out = "<section class='plots'>";
  for (const auto& plot : plots) out += report::render_plot(plot);
  return report::render_page("Sequence parallelism", title_of_attention(sizes),
                             out + "</section>\n<section class='card'><p>" + report::html_text(kAttentionLegend) +
                                 "</p>" + attention_table().html(rows) + "<pre>" + report::html_text(notes) +
                                 "</pre></section>\n");
}

}  // namespace

int bench_sequence(const Arguments& arguments) {
  CLI::App app(
      "Runs the attention of one layer under every mode of sequence parallelism and measures the traffic, memory and "
      "operations of each rank.",
      "colossal bench sequence");
  AttentionSizes sizes;
  std::vector<int64_t> ranks{1, 2, 4, 8};
  std::string report;
  bool full = false;
  sizes.kv_heads = 0;
  const auto size = [&](const char* flag, int64_t& value, const char* help, int64_t most) {
    return app.add_option(flag, value, help)->check(CLI::Range(int64_t{1}, most));
  };
  size("--batch", sizes.batch, "number of rows", 1 << 16)->capture_default_str();
  size("--sequence", sizes.tokens, "tokens per row, over all ranks", 1 << 20)->capture_default_str();
  size("--heads", sizes.heads, "number of attention heads", 1 << 12)->capture_default_str();
  size("--kv-heads", sizes.kv_heads, "number of key and value heads; default: --heads", 1 << 12);
  size("--head-dim", sizes.head_dim, "features per head", 1 << 12)->capture_default_str();
  app.add_flag("--full", full, "bidirectional attention instead of causal");
  app.add_option("--ranks", ranks, "numbers of ranks to measure; each rank is a thread")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  app.add_option("--report", report, "HTML file for the table and plots");
  parse(app, arguments);
  sizes.causal = !full;
  if (sizes.kv_heads == 0) sizes.kv_heads = sizes.heads;
  if (sizes.heads % sizes.kv_heads != 0)
    throw UsageError(concat("--kv-heads must divide --heads: got ", sizes.kv_heads, " of ", sizes.heads));
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());

  std::printf("%s\n%s\n", title_of_attention(sizes).c_str(), kAttentionLegend);
  const MeasuredTable table = attention_table();
  table.print_head();
  std::vector<MeasuredRow> rows;
  std::string notes;
  for (const int64_t count : ranks) {
    for (const SequenceConfig& config : parallel::sequence_modes(count)) {
      try {
        const auto measured = parallel::measured_cost(config, sizes);
        rows.push_back(
            {count, parallel::mode_name(config), busiest(measured), busiest(parallel::published_cost(config, sizes))});
      } catch (const Error& error) {
        notes += concat(count, count == 1 ? " rank, " : " ranks, ", parallel::mode_name(config),
                        ": left out: ", error.message(), "\n");
        continue;
      }
      table.print_row(rows.back());
    }
  }
  if (!notes.empty()) std::printf("\n%s", notes.c_str());
  if (!report.empty()) write_file(report, page_of_attention(sizes, rows, notes));
  return 0;
}

}  // namespace colossal::cli
