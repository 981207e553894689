#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/html.h"
#include "colossal/cli/bench/bench.h"
#include "colossal/cli/bench/table.h"
#include "colossal/parallel/sequence/attention_cost.h"
#include "colossal/report/plot.h"

namespace colossal::cli {
namespace {

using parallel::AttentionCost;
using parallel::AttentionSizes;
using parallel::SequenceConfig;

const BenchTable& attention_table() {
  static const BenchTable table({{"ranks", 5},
                                 {"mode", -19},
                                 {"sent forward", 10, 0, 1, true},
                                 {"sent backward", 10, 0, 1, true},
                                 {"between nodes", 10, 0, 1, true},
                                 {"calls", 4, 0, 1, true},
                                 {"activations, MiB", 8, 3, kMiB, true},
                                 {"GFLOP", 8, 4, 1e9, true},
                                 {"busiest / mean", 7, 4, 1, true}});
  return table;
}

/// The costs of a mode at a number of ranks, in the order of the table's columns.
struct AttentionRow {
  int64_t ranks;
  std::string mode;
  std::vector<double> measured, formula;
};

BenchRow cells_of(const AttentionRow& row) {
  BenchRow cells{row.ranks, row.mode};
  for (size_t i = 0; i < row.measured.size(); ++i) cells.emplace_back(Compared{row.measured[i], row.formula[i]});
  return cells;
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
std::vector<report::Series> lines_of_modes(const std::vector<AttentionRow>& rows,
                                           double (*value)(const std::vector<double>&)) {
  const char* const styles[] = {"first", "second", "third", "fourth", "fifth", "sixth", "seventh"};
  std::vector<report::Series> all;
  for (const AttentionRow& row : rows) {
    if (row.mode.find(" node ") != std::string::npos) continue;
    auto series = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == row.mode; });
    if (series == all.end())
      series = all.insert(all.end(), report::Series{row.mode, styles[all.size() % std::size(styles)], {}, {}});
    series->x.push_back(static_cast<double>(row.ranks));
    series->y.push_back(value(row.measured));
  }
  return all;
}

std::string page_of_attention(const AttentionSizes& sizes, const std::vector<AttentionRow>& rows,
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
  std::vector<BenchRow> cells;
  for (const AttentionRow& row : rows) cells.push_back(cells_of(row));
  return bench_page("Sequence parallelism", title_of_attention(sizes), plots, kAttentionLegend,
                    attention_table().html(cells) + "<pre>" + html_text(notes) + "</pre>");
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
  add_ranks(app, ranks);
  app.add_option("--report", report, "HTML file for the table and plots");
  parse(app, arguments);
  sizes.causal = !full;
  if (sizes.kv_heads == 0) sizes.kv_heads = sizes.heads;
  if (sizes.heads % sizes.kv_heads != 0)
    throw UsageError(concat("--kv-heads must divide --heads: got ", sizes.kv_heads, " of ", sizes.heads));
  ranks = ascending(ranks);

  std::printf("%s\n%s\n", title_of_attention(sizes).c_str(), kAttentionLegend);
  attention_table().print_head();
  std::vector<AttentionRow> rows;
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
      attention_table().print_row(cells_of(rows.back()));
    }
  }
  if (!notes.empty()) std::printf("\n%s", notes.c_str());
  if (!report.empty()) write_file(report, page_of_attention(sizes, rows, notes));
  return 0;
}

}  // namespace colossal::cli
